"""The operators that models are written in, each with its derivative.

Every derivative reads what PyTorch's reads: a matrix product its two factors, a softmax or ReLU its
result, a normalisation its input and the saved statistics, a sum nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hremate._tape import LOSS_PHASE, Shape, Tape, Value

INDEX, MASK = 8, 1  # bytes per element


class ModelTape(Tape):
    """A tape with the operators of common models."""

    # -- products ---------------------------------------------------------------------------------

    def linear(self, x: Value, weight: Value, bias: Value | None = None) -> Value:
        """`x @ weight + bias`; weight is (in, out)."""
        out = self.new((*x.shape[:-1], weight.shape[1]))
        flops = 2.0 * math.prod(x.shape) * weight.shape[1]
        weight.uses += 1
        if bias is None:
            self.emit("mm.default", (x, weight), (out,), flops)
        else:
            bias.uses += 1
            self.emit("addmm.default", (x, weight, bias), (out,), flops)

        def pullback(g: Value) -> None:
            if x.differentiable:
                dx = self.new(x.shape)
                self.emit("mm.default", (g, weight), (dx,), flops)
                self.give(x, dx)
            dw = self.gradient_for(weight)
            self.emit("mm.default", (g, x), (dw,), flops)
            self.give(weight, dw)
            if bias is not None:
                db = self.gradient_for(bias)
                self.emit("sum.dim_IntList", (g,), (db,))
                self.give(bias, db)

        self.record((out,), pullback)
        return out

    def dense(self, x: Value, features: int, name: str, bias: bool = True) -> Value:
        """A linear layer with parameters of its own."""
        weight = self.parameter(f"{name}.weight", (x.shape[-1], features))
        return self.linear(x, weight, self.parameter(f"{name}.bias", (features,)) if bias else None)

    def bmm(self, a: Value, b: Value, shape: Shape, inner: int) -> Value:
        """A batched matrix product of the given shape; `inner` is the length summed over."""
        out = self.new(shape)
        flops = 2.0 * math.prod(shape) * inner
        self.emit("bmm.default", (a, b), (out,), flops)

        def pullback(g: Value) -> None:
            for x, other in ((b, a), (a, b)):
                dx = self.new(x.shape)
                self.emit("bmm.default", (other, g), (dx,), flops)
                self.give(x, dx)

        self.record((out,), pullback)
        return out

    def conv(self, x: Value, channels: int, kernel: int, stride: int, name: str) -> Value:
        """A 2-d convolution with padding; x is (batch, channels, height, width)."""
        batch, inner, height, width = x.shape
        weight = self.parameter(f"{name}.weight", (channels, inner, kernel, kernel))
        weight.uses += 1
        out = self.new((batch, channels, max(1, height // stride), max(1, width // stride)))
        flops = 2.0 * math.prod(out.shape) * inner * kernel * kernel
        self.emit("convolution.default", (x, weight), (out,), flops)

        def pullback(g: Value) -> None:
            dw = self.gradient_for(weight)
            if x.differentiable:
                dx = self.new(x.shape)
                self.emit("convolution_backward.default", (g, x, weight), (dx, dw), 2 * flops)
                self.give(x, dx)
            else:
                self.emit("convolution_backward.default", (g, x, weight), (dw,), flops)
            self.give(weight, dw)

        self.record((out,), pullback)
        return out

    def embedding(self, tokens: Value, weight: Value) -> Value:
        out = self.new((*tokens.shape, weight.shape[1]))
        weight.uses += 1
        # Only the rows looked up are moved.
        rows = Value(weight.name, out.shape, out.nbytes)
        self.emit("embedding.default", (rows, tokens), (out,))

        def pullback(g: Value) -> None:
            dw = self.gradient_for(weight)
            self.emit("embedding_dense_backward.default", (g, tokens), (dw,))
            self.give(weight, dw)

        self.record((out,), pullback)
        return out

    # -- elementwise ------------------------------------------------------------------------------

    def add(self, a: Value, b: Value) -> Value:
        """A sum of two tensors of equal shape, or of `a` and a resident tensor."""
        out = self.new(a.shape)
        self.emit("add.Tensor", (a, b), (out,))

        def pullback(g: Value) -> None:
            for x in (a, b):
                if x.differentiable:
                    self.give(x, g)

        self.record((out,), pullback)
        return out

    def mul(self, a: Value, b: Value, shape: Shape | None = None) -> Value:
        """A product, broadcast to `shape` (default: that of `a`)."""
        out = self.new(shape or a.shape)
        for x in (a, b):
            x.uses += x.parameter
        self.emit("mul.Tensor", (a, b), (out,))

        def pullback(g: Value) -> None:
            for x, other in ((a, b), (b, a)):
                if not x.differentiable:
                    continue
                if x.shape == out.shape:
                    dx = self.gradient_for(x)
                    self.emit("mul.Tensor", (g, other), (dx,))
                else:
                    wide = self.new(out.shape)
                    self.emit("mul.Tensor", (g, other), (wide,))
                    dx = self.gradient_for(x)
                    self.emit("sum.dim_IntList", (wide,), (dx,))
                self.give(x, dx)

        self.record((out,), pullback)
        return out

    def scale(self, x: Value) -> Value:
        """A product with a constant."""
        return self._unary("mul.Scalar", "mul.Scalar", x, ())

    def clone(self, x: Value, shape: Shape | None = None) -> Value:
        """A contiguous copy, maybe in another shape; its gradient is a view of the incoming one."""
        out = self.new(shape or x.shape)
        self.emit("clone.default", (x,), (out,))
        self.record((out,), lambda g: self.give(x, Value(g.name, x.shape, g.nbytes)))
        return out

    def relu(self, x: Value) -> Value:
        return self._unary("relu.default", "threshold_backward.default", x, ("out",))

    def gelu(self, x: Value) -> Value:
        return self._unary("gelu.default", "gelu_backward.default", x, ("x",))

    def silu(self, x: Value) -> Value:
        return self._unary("silu.default", "silu_backward.default", x, ("x",))

    def softplus(self, x: Value) -> Value:
        return self._unary("softplus.default", "softplus_backward.default", x, ("x",))

    def sigmoid(self, x: Value) -> Value:
        return self._unary("sigmoid.default", "sigmoid_backward.default", x, ("out",))

    def tanh(self, x: Value) -> Value:
        return self._unary("tanh.default", "tanh_backward.default", x, ("out",))

    def exp(self, x: Value) -> Value:
        return self._unary("exp.default", "mul.Tensor", x, ("out",))

    def softmax(self, x: Value) -> Value:
        return self._unary("_softmax.default", "_softmax_backward_data.default", x, ("out",))

    def log_softmax(self, x: Value) -> Value:
        return self._unary("_log_softmax.default", "_log_softmax_backward_data.default", x, ("out",))

    def _unary(self, kind: str, derivative: str, x: Value, reads: tuple[str, ...]) -> Value:
        """An op of one tensor whose derivative reads the gradient and `reads`: "x", "out" or neither."""
        out = self.new(x.shape)
        self.emit(kind, (x,), (out,))
        saved = tuple([x if name == "x" else out for name in reads])

        def pullback(g: Value) -> None:
            dx = self.new(x.shape)
            self.emit(derivative, (g, *saved), (dx,))
            self.give(x, dx)

        self.record((out,), pullback)
        return out

    def dropout(self, x: Value) -> Value:
        """Dropout; the mask (one byte per element) is saved for the backward part."""
        out, mask = self.new(x.shape), self.new(x.shape, MASK, differentiable=False)
        self.emit("native_dropout.default", (x,), (out, mask))

        def pullback(g: Value) -> None:
            dx = self.new(x.shape)
            self.emit("native_dropout_backward.default", (g, mask), (dx,))
            self.give(x, dx)

        self.record((out,), pullback)
        return out

    # -- normalisation, pooling, shape ------------------------------------------------------------

    def norm(self, kind: str, x: Value, statistics: int, channels: int, name: str) -> Value:
        """A `kind` ("layer", "batch", "group") norm; saves mean and rstd of `statistics` elements."""
        weight = self.parameter(f"{name}.weight", (channels,))
        bias = self.parameter(f"{name}.bias", (channels,))
        weight.uses += 1
        bias.uses += 1
        out = self.new(x.shape)
        mean, rstd = (self.new((statistics,), differentiable=False) for _ in range(2))
        self.emit(f"native_{kind}_norm.default", (x, weight, bias), (out, mean, rstd))

        def pullback(g: Value) -> None:
            dx = self.new(x.shape)
            dw, db = self.gradient_for(weight), self.gradient_for(bias)
            reads = (g, x, mean, rstd, weight)
            self.emit(f"native_{kind}_norm_backward.default", reads, (dx, dw, db))
            self.give(x, dx)
            self.give(weight, dw)
            self.give(bias, db)

        self.record((out,), pullback)
        return out

    def max_pool(self, x: Value, stride: int = 2) -> Value:
        """Max-pooling; the indices are saved for the backward part."""
        shape = (*x.shape[:2], max(1, x.shape[2] // stride), max(1, x.shape[3] // stride))
        out, indices = self.new(shape), self.new(shape, INDEX, differentiable=False)
        self.emit("max_pool2d_with_indices.default", (x,), (out, indices))

        def pullback(g: Value) -> None:
            dx = self.new(x.shape)
            self.emit("max_pool2d_with_indices_backward.default", (g, x, indices), (dx,))
            self.give(x, dx)

        self.record((out,), pullback)
        return out

    def resample(self, kind: str, derivative: str, x: Value, shape: Shape) -> Value:
        """An op without saved tensors that changes the shape: upsampling, mean over some axes."""
        out = self.new(shape)
        self.emit(kind, (x,), (out,))

        def pullback(g: Value) -> None:
            dx = self.new(x.shape)
            self.emit(derivative, (g,), (dx,))
            self.give(x, dx)

        self.record((out,), pullback)
        return out

    def cat(self, parts: Sequence[Value], shape: Shape) -> Value:
        """A concatenation; the gradients of the parts are views of the gradient."""
        out = self.new(shape)
        self.emit("cat.default", parts, (out,))

        def pullback(g: Value) -> None:
            for x in parts:
                self.give(x, Value(g.name, x.shape, x.nbytes))

        self.record((out,), pullback)
        return out

    def chunk(self, x: Value, parts: int, axis: int = -1) -> list[Value]:
        """Equal views along `axis`, each to be used; their gradients are concatenated."""
        shape = list(x.shape)
        shape[axis] //= parts
        views = [Value(x.name, tuple(shape), x.nbytes // parts) for _ in range(parts)]

        def pullback(*gradients: Value) -> None:
            dx = self.new(x.shape)
            self.emit("cat.default", gradients, (dx,))
            self.give(x, dx)

        self.record(views, pullback)
        return views

    # -- losses -----------------------------------------------------------------------------------

    def cross_entropy(self, logits: Value) -> Value:
        """Log-softmax, then the loss op over (rows, classes)."""
        log_probability = self.log_softmax(logits)
        target = self.source("target", logits.shape[:-1], INDEX)
        loss, weight = self.new((1,)), self.new((1,), differentiable=False)
        self._loss("nll_loss", (log_probability, target), (loss, weight), (target, weight))
        return loss

    def mse(self, prediction: Value) -> Value:
        target = self.source("target", prediction.shape)
        loss = self.new((1,))
        self._loss("mse_loss", (prediction, target), (loss,), (target,))
        return loss

    def _loss(
        self, kind: str, inputs: tuple[Value, ...], outputs: tuple[Value, ...], saved: tuple[Value, ...]
    ) -> None:
        prediction = inputs[0]
        self.phase = LOSS_PHASE
        self.emit(f"{kind}.default", inputs, outputs)

        def pullback(g: Value, *_: None) -> None:
            dx = self.new(prediction.shape)
            self.emit(f"{kind}_backward.default", (g, prediction, *saved), (dx,))
            self.give(prediction, dx)

        self.record(outputs, pullback)
