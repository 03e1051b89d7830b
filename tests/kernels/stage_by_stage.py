"""The reference implementation of a chain: one kernel after the other, in plain Python."""

from rewire.kernels.batch import conv, norm, relu
from rewire.kernels.batch.chain import StageTensors
from rewire.kernels.geometry import to_hwcn


def hwcn(x):
    return to_hwcn(x).permute(3, 2, 0, 1)


class StageByStage:
    """Activations and moments of a chain, and its gradients."""

    def __init__(self, x, stages, tensors):
        self.stages = stages
        self.tensors = [StageTensors(*(None if t is None else t.detach() for t in given)) for given in tensors]
        self.activations, self.before_norm, self.moments = [hwcn(x.detach())], [], []
        for stage, (values, conv_bias, weight, bias, positions) in zip(stages, self.tensors, strict=True):
            known = weight.new_empty(len(weight)), weight.new_empty(len(weight))
            source = self.activations[stage.source]
            z = conv.forward(source, values, positions, conv_bias, stage.geometry, moments=known)
            if stage.addend is None:
                y = norm.forward(z, weight, bias, known, stage.eps, stage.relu_limit, stage.pool)
            else:
                y = norm.forward(z, weight, bias, known, stage.eps, -1.0)
                y = relu.add_relu(y, self.activations[stage.addend], stage.relu_limit)
            self.activations.append(y)
            self.before_norm.append(z)
            self.moments.append(known)

    def gradients(self, grad):
        """Of the input, and of values, biases and weights of all stages; None where there is no bias."""
        known, found = {len(self.stages): hwcn(grad)}, []
        for index in reversed(range(len(self.stages))):
            stage, (values, conv_bias, weight, bias, positions) = self.stages[index], self.tensors[index]
            grad, limit = known.pop(index + 1), stage.relu_limit
            if stage.addend is not None:
                if limit >= 0:
                    grad, limit = relu.relu_backward(grad, self.activations[index + 1], limit), -1.0
                part = known.get(stage.addend)
                known[stage.addend] = grad if part is None else relu.add_relu(part, grad, -1.0)
            shared = (self.before_norm[index], weight, bias, self.moments[index], stage.eps)
            grad_z, grad_weight, grad_bias = norm.backward(grad, *shared, limit, stage.pool)
            source, part = self.activations[stage.source], known.get(stage.source)
            known[stage.source], grad_values = conv.backward(
                grad_z, source, values, positions, stage.geometry, (True, True), part
            )
            grad_conv_bias = None if conv_bias is None else grad_z.sum((0, 2, 3))
            found = [grad_values, grad_conv_bias, grad_weight, grad_bias, *found]
        return [known[0], *found]
