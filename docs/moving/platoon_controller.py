"""What the workers of ``platoon_worker.py`` ask of Platoon's controller."""

import sys

from platoon.channel import Controller


class Training(Controller):
    """Says who trains, who validates, and when all is done."""

    def __init__(self, *args, **kwargs):
        Controller.__init__(self, *args, **kwargs)
        self.max_mb, self.valid_freq, self.patience = 240, 24, 4
        self.n_trained, self.bad, self.best = 0, 0, None
        self.valid, self.stop = False, False

    def handle_control(self, req, worker_id, req_info):
        if req == "next":
            if self.stop:
                return "stop"
            if self.valid:
                self.valid = False
                return "valid"
            return "train"
        if req == "done":
            before = self.n_trained // self.valid_freq
            self.n_trained += req_info["train_len"]
            self.valid = self.n_trained // self.valid_freq > before
            self.stop = self.n_trained >= self.max_mb
        elif req == "pred_errors":
            error = req_info["valid_err"]
            if self.best is None or error < self.best:
                self.best, self.bad = error, 0
                return "best"
            self.bad += 1
            self.stop = self.stop or self.bad >= self.patience
        return ""


if __name__ == "__main__":
    arguments = Controller.default_parser().parse_args()
    controller = Training(**Controller.default_arguments(arguments))
    sys.exit(controller.serve())
