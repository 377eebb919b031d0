"""The likelihoods in torch, gradients by autograd, in one process with all cores."""

from contextlib import contextmanager

import torch
from torch.nn.functional import softplus

from bench import likelihoods
from bench.likelihoods import ALPHA, NU
from bench.work import questions


def student(y, eta):
    nu = torch.tensor(NU, dtype=torch.float64)
    constant = torch.lgamma(nu / 2) - torch.lgamma((nu + 1) / 2)
    constant = constant + torch.log(nu * torch.pi) / 2
    return constant + (nu + 1) / 2 * torch.log1p((y - eta) ** 2 / nu)


def negative_binomial(y, eta):
    alpha = torch.tensor(ALPHA, dtype=torch.float64)
    constant = torch.lgamma(alpha) - alpha * torch.log(alpha)
    terms = torch.lgamma(y + 1) - torch.lgamma(y + alpha) + constant
    return terms + (y + alpha) * torch.log(alpha + torch.exp(eta)) - y * eta


TERMS = {
    "logistic": lambda y, eta: softplus(eta) - y * eta,
    "poisson": lambda y, eta: torch.exp(eta) - y * eta + torch.lgamma(y + 1),
    "student": student,
    "negative-binomial": negative_binomial,
}


@contextmanager
def opened(options, place):
    torch.set_num_threads(options.cores)
    rows = likelihoods.rows(options)
    x = torch.from_numpy(rows)
    beta = torch.from_numpy(likelihoods.beta()).requires_grad_()

    def prepare(column):
        y = torch.from_numpy(likelihoods.outcomes(column, rows))

        def call():
            value = TERMS[column](y, x @ beta).sum()
            (gradient,) = torch.autograd.grad(value, beta)
            return value, gradient

        return lambda: likelihoods.work(call)

    yield questions(likelihoods.COLUMNS, prepare)
