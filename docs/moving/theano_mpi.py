"""A network on images of digits: a model class, and its training by Theano-MPI."""

import numpy
import theano
import theano.tensor as T
from mlp import MLP as Perceptron
from sklearn.datasets import load_digits


class Digits(object):
    """Batches of the data, of which each worker takes every ``size``-th."""

    def __init__(self, rank, size, batch_size):
        images, labels = load_digits(return_X_y=True)
        order = numpy.random.RandomState(0).permutation(len(images))
        self.images = numpy.asarray(images[order] / 16.0, dtype=theano.config.floatX)
        self.labels = numpy.asarray(labels[order], dtype="int32")
        self.rank, self.size, self.batch_size = rank, size, batch_size
        self.train, self.valid = numpy.arange(1200), numpy.arange(1200, len(images))
        self.n_batch_train = len(self.train) // batch_size // size
        self.n_batch_val = len(self.valid) // batch_size // size

    def shuffle(self, seed):
        self.train = numpy.random.RandomState(seed).permutation(1200)

    def batch(self, rows, i):
        start = (i * self.size + self.rank) * self.batch_size
        rows = rows[start : start + self.batch_size]
        return self.images[rows], self.labels[rows]


class MLP(object):
    n_epochs = 10
    n_subb = 1
    learning_rate = 0.2
    batch_size = 50
    name = "mlp"

    def __init__(self, config):
        self.verbose = config["verbose"]
        self.epoch = 0
        self.data = Digits(config["rank"], config["size"], self.batch_size)
        self.x = T.matrix("x")
        self.y = T.ivector("y")
        network = Perceptron(numpy.random.RandomState(1234), self.x, 8 * 8, 32, 10)
        self.cost = network.classes.negative_log_likelihood(self.y)
        self.error = network.classes.errors(self.y)
        self.params = network.params
        self.shared_lr = theano.shared(numpy.float32(self.learning_rate))
        self.reset_iter("train")
        self.reset_iter("val")

    def compile_iter_fns(self, sync_type="avg"):
        gparams = T.grad(self.cost, self.params)
        lr = T.cast(self.shared_lr, theano.config.floatX)
        self.train_fn = theano.function(
            [self.x, self.y],
            [self.cost, self.error],
            updates=[(p, p - lr * g) for p, g in zip(self.params, gparams)],
        )
        self.val_fn = theano.function([self.x, self.y], [self.cost, self.error])

    def train_iter(self, count, recorder):
        recorder.start()
        if self.i_train == 0:
            self.data.shuffle(seed=self.epoch)
        x, y = self.data.batch(self.data.train, self.i_train)
        self.i_train += 1
        recorder.end("wait")
        recorder.start()
        cost, error = self.train_fn(x, y)
        recorder.end("calc")
        recorder.train_error(count, cost, error)

    def val_iter(self, count, recorder):
        x, y = self.data.batch(self.data.valid, self.i_val)
        self.i_val += 1
        cost, error = self.val_fn(x, y)
        recorder.val_error(count, cost, error, 0.0)

    def reset_iter(self, mode):
        if mode == "train":
            self.i_train = 0
        else:
            self.i_val = 0

    def adjust_hyperp(self, epoch):
        if epoch == 7:
            self.shared_lr.set_value(numpy.float32(self.learning_rate / 10))

    def cleanup(self):
        pass


def train(devices=("cuda0", "cuda1")):
    from theanompi import EASGD

    rule = EASGD()
    rule.init(devices=list(devices), modelfile="theano_mpi", modelclass="MLP")
    rule.wait()


if __name__ == "__main__":
    train()
