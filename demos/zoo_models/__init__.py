"""What `zoo.py` trains: networks in Lasagne's layers, their graphs and their data.

A network's file has its layers and nothing of training: `alexnet`, `vgg`, `googlenet`,
`cifar10`, `wide_resnet` and `gans`; ResNets are in ``demos/resnet.py`` and the LSTM in
``demos/lstm.py``. `graphs` makes steps of them, `data` gets rows for these,
and `recipes` has how each is trained.
"""
