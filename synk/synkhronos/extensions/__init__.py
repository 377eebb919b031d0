"""`synkhronos.extensions`: update rules whose gradients are reduced between calls."""
