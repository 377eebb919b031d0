"""Under its old name, for tests that are yet to take it from `interrupted`."""

from interrupted import InterruptedAt as InterruptedAt
