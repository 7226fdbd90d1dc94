"""A loss is added up over a sequence, in either way of decoding, and then goes backward."""

import random

from torch import nn, optim


def one(source, target, encoder, decoder, encoder_optimizer, decoder_optimizer, criterion):
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    hidden = encoder(source)
    word = target[0]
    loss = 0
    if random.random() < 0.5:
        for i in range(len(target)):
            output, hidden = decoder(word, hidden)
            loss += criterion(output, target[i])
            word = target[i]
    else:
        for i in range(len(target)):
            output, hidden = decoder(word, hidden)
            loss += criterion(output, target[i])
            word = output.argmax(-1).detach()
    loss.backward()
    nn.utils.clip_grad_norm_(encoder.parameters(), 2.0)
    nn.utils.clip_grad_norm_(decoder.parameters(), 2.0)
    encoder_optimizer.step()
    decoder_optimizer.step()
    return loss.item() / len(target)


def train(encoder, decoder, pairs):
    total = 0.0
    encoder_optimizer = optim.SGD(encoder.parameters(), lr=0.01)
    decoder_optimizer = optim.SGD(decoder.parameters(), lr=0.01)
    for source, target in pairs:
        loss = one(source, target, encoder, decoder, encoder_optimizer, decoder_optimizer, nn.NLLLoss())
        total += loss
