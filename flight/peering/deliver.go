package peering

import (
	"fmt"
	"io"

	"bowstring/fetch/peers"
	"bowstring/schema"
)

// deliver gives the answers of a message of n bytes to those who wait for them. They are read to where they stay.
func (l *Link) deliver(r io.Reader, n int) error {
	answers, err := readAnswers(r, n)
	if err != nil {
		return err
	}
	n -= answersHead + len(answers)*answerBytes
	for _, a := range answers {
		n -= a.Size
		l.mu.Lock()
		w := l.waiting[a.ID]
		asked := int32(a.ID-l.next) <= 0 // numbers begin anew some day
		l.mu.Unlock()
		if !asked {
			return errAnswers
		}
		var is answer
		switch {
		case w == nil: // it has left
			err = discard(r, a.Size)
		case a.Status == Here && int64(a.Size) != w.size:
			return fmt.Errorf("%w: it has sent %d bytes of a blob of %d", schema.ErrUnavailable, a.Size, w.size)
		case a.Status == Here:
			b := newBuffer(a.Size)
			is.blob = schema.NewBlob(b.memory[:a.Size:a.Size], b)
			_, err = io.ReadFull(r, b.memory[:a.Size])
		default:
			is.err, err = readWhy(r, a)
		}
		if err != nil {
			is.blob.Release()
			return err
		}
		l.answered(a.ID, is)
	}
	return discard(r, n) // what a later version says
}

// answered gives an answer to who waits for it, if he still does: it may have taken long to come in.
func (l *Link) answered(id uint32, is answer) {
	l.mu.Lock()
	w := l.waiting[id]
	delete(l.waiting, id)
	l.mu.Unlock()
	if w == nil {
		is.blob.Release()
		return
	}
	w.answer <- is
}

// readWhy reads why a blob does not come.
func readWhy(r io.Reader, a Answer) (why, err error) {
	text := make([]byte, min(a.Size, maxWhy))
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	is := schema.ErrUnavailable
	switch a.Status {
	case Lost:
		is = schema.ErrNotFound
	case NotHeld:
		is = peers.ErrNotHeld
	case Full:
		is = peers.ErrFull
	case Failed, Here:
	}
	return fmt.Errorf("%w: it says %s", is, text), discard(r, a.Size-len(text))
}

func discard(r io.Reader, n int) error {
	_, err := io.CopyN(io.Discard, r, int64(n))
	return err
}
