# SPDX-License-Identifier: Apache-2.0
"""Trains torchvision's ResNet-50 on small random images, with a DataLoader whose workers are forked."""
import common
from torch_common import Training, prepare

import torch
import torchvision


class Images(torch.utils.data.Dataset):
    """Made from the index, so that they are the same whichever worker makes them."""

    def __len__(self):
        return 4 * 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 96, 96, generator=generator), index % 100


def main():
    arguments = common.options()
    device = prepare(arguments)
    model = torchvision.models.resnet50(num_classes=100).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    # The driver is initialised by now: the workers are children of a process that uses the GPU.
    loader = torch.utils.data.DataLoader(Images(), batch_size=32, shuffle=False, num_workers=2, pin_memory=True,
                                         multiprocessing_context="fork")
    batches = [(x.to(device, non_blocking=True), y.to(device, non_blocking=True)) for x, y in loader]
    torch.cuda.synchronize()
    criterion = torch.nn.CrossEntropyLoss()
    common.run(Training(model, batches, lambda m, b: criterion(m(b[0]), b[1]), optimizer), arguments)


if __name__ == "__main__":
    main()
