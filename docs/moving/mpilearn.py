"""A network on images of digits, trained by mpi_learn: ``mpirun -n 3 python ...``."""

import numpy
from keras.layers import Dense
from keras.models import Sequential
from mpi4py import MPI
from mpi_learn.mpi.manager import MPIManager
from mpi_learn.train.algo import Algo
from mpi_learn.train.data import Data
from mpi_learn.train.model import ModelTensorFlow
from sklearn.datasets import load_digits


class Digits(Data):
    """Each file has some rows; a worker reads every so-manyth of them."""

    def load_data(self, file_name):
        with numpy.load(file_name) as arrays:
            return arrays["images"], arrays["labels"]


def get_model():
    model = Sequential()
    model.add(Dense(32, activation="tanh", input_shape=(64,)))
    model.add(Dense(10, activation="softmax"))
    return model


def write_files():
    images, labels = load_digits(return_X_y=True)
    order = numpy.random.RandomState(0).permutation(len(images))
    images, labels = images[order] / 16.0, numpy.eye(10)[labels[order]]
    names = []
    for start in range(0, len(images), 300):
        names.append("digits%d.npz" % start)
        rows = slice(start, start + 300)
        numpy.savez(names[-1], images=images[rows], labels=labels[rows])
    return names[:4], names[4:]


def train(batch_size=50, num_epochs=10):
    comm = MPI.COMM_WORLD
    files = write_files() if comm.Get_rank() == 0 else None
    train_files, val_files = comm.bcast(files)
    algo = Algo(
        "adam",
        lr=0.005,
        loss="categorical_crossentropy",
        validate_every=1200 // batch_size,
        sync_every=1,
        mode="sgd",
    )
    manager = MPIManager(
        comm,
        Digits(batch_size),
        algo,
        ModelTensorFlow(comm, source=__file__),
        num_epochs,
        train_files,
        val_files,
        early_stopping="val_loss,<,4",
    )
    if comm.Get_rank() == 0:
        print(manager.train())
    manager.free_comms()


if __name__ == "__main__":
    train()
