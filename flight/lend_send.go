package flight

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/peers"
	"bowstring/flight/peer"
	"bowstring/flight/usage"
	"bowstring/flight/wire"
	"bowstring/schema"
)

// take returns answers for one message.
func (l *lending) take() []fetch.Answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < len(l.answers) && n < lendAnswers && (n == 0 || size < lendBytes) {
		size += len(l.answers[n].Blob.Bytes())
		n++
	}
	taken := slices.Clone(l.answers[:n])
	clear(l.answers[:n])
	if l.answers = l.answers[n:]; len(l.answers) == 0 {
		l.answers = nil
	}
	select {
	case l.sent <- struct{}{}:
	default:
	}
	return taken
}

// send sends answers until ctx ends.
func (l *lending) send(ctx context.Context) error {
	there := time.NewTimer(thereEvery)
	defer there.Stop()
	for {
		answers := l.take()
		if len(answers) == 0 {
			var late <-chan time.Time
			if l.waits() {
				there.Reset(thereEvery)
				late = there.C
			}
			select {
			case <-l.ready:
				continue
			case <-late: // a message of no answers
			case <-ctx.Done():
				return nil
			}
		}
		small := cloneSmall(answers)
		blobs, bytes := int64(0), int64(0)
		for i := range answers {
			if answers[i].Err == nil {
				blobs, bytes = blobs+1, bytes+int64(len(answers[i].Blob.Bytes()))
			}
		}
		l.bill(answers)
		f := answersFrame(answers, small)
		size := f.Size()
		if err := laneOf(ctx).Send(ctx, l.ss, f); err != nil {
			return err
		}
		count(ctx, len(answers), size)
		l.lent.add(blobs, bytes, int64(len(answers))-blobs)
	}
}

// bill counts answers that are about to be sent: what went to which node, and what was read from the store on whose
// account.
func (l *lending) bill(answers []fetch.Answer) {
	var blobs, bytes, handed, handedBytes int64
	for i := range answers {
		a := &answers[i]
		if a.Err != nil {
			continue
		}
		n := int64(len(a.Blob.Bytes()))
		blobs++
		bytes += n
		if a.Loan.Held {
			handed++
			handedBytes += n
		}
		if book := l.server.opts.Usage; book != nil && a.Stored {
			dataset, _, _ := strings.Cut(a.Loan.Snapshot, "@")
			book.Add(a.Loan.Tenant, cmp.Or(dataset, usage.Other), usage.Amount{StoreBytes: n})
		}
	}
	l.server.egress.Sent(l.node, l.zone, blobs-handed, bytes-handedBytes, false)
	if handed > 0 {
		l.server.egress.Sent(l.node, l.zone, handed, handedBytes, true)
	}
}

// discard releases what will not be sent.
func (l *lending) discard() {
	for answers := l.take(); len(answers) > 0; answers = l.take() {
		for i := range answers {
			answers[i].Blob.Release()
		}
	}
}

// cloneSmall copies the blobs that go within the head of a message, by answer. An answer whose blob cannot be read any
// more becomes an error; the blob is released.
func cloneSmall(answers []fetch.Answer) [][]byte {
	small := make([][]byte, len(answers))
	for i := range answers {
		a := &answers[i]
		if a.Err != nil || len(a.Blob.Bytes()) > wire.InlineBytes {
			continue
		}
		if small[i], a.Err = cloned(a.Blob.Bytes()); a.Err != nil {
			a.Blob.Release()
			a.Blob = schema.Blob{}
		}
	}
	return small
}

// answersFrame makes a message of answers, whose blobs it takes over. small is what cloneSmall has made of them.
func answersFrame(answers []fetch.Answer, small [][]byte) *wire.Frame {
	head := make([]peer.Answer, len(answers))
	blobs := make([]schema.Blob, 0, len(answers))
	pieces := make([]wire.Piece, 1, 1+len(answers))
	for i, a := range answers {
		head[i] = peer.Answer{ID: a.ID, Status: peer.Here, Size: len(a.Blob.Bytes())}
		if a.Err != nil {
			why := []byte(schema.Quote(a.Err.Error()))
			head[i].Status, head[i].Size = peer.Failed, len(why)
			switch {
			case errors.Is(a.Err, schema.ErrDataLoss), errors.Is(a.Err, schema.ErrNotFound):
				head[i].Status = peer.Lost
			case errors.Is(a.Err, peers.ErrNotHeld):
				head[i].Status = peer.NotHeld
			case errors.Is(a.Err, peers.ErrFull):
				head[i].Status = peer.Full
			}
			pieces = append(pieces, wire.Piece{Bytes: why})
			continue
		}
		b := a.Blob.Bytes()
		if len(b) > wire.InlineBytes {
			pieces = append(pieces, wire.Piece{Bytes: b[:len(b):len(b)], Held: true})
		} else if len(b) > 0 {
			pieces = append(pieces, wire.Piece{Bytes: small[i]})
		}
		blobs = append(blobs, a.Blob)
	}
	pieces[0].Bytes = peer.AppendAnswers(nil, head)
	batch := &schema.Batch{Blobs: [][]schema.Blob{blobs}}
	return wire.NewFrame(pieces, batch, wire.FreshUntil(batch, time.Now()))
}

// cloned is a copy of bytes that may lie in a file.
func cloned(b []byte) (to []byte, err error) {
	err = schema.Guard(func() error {
		to = slices.Clone(b)
		return nil
	})
	return to, err
}
