package peer

import (
	"fmt"
	"io"

	"bowstring/fetch/peers"
	"bowstring/schema"
)

const (
	// atOnceBytes is how much memory is made ready for blobs that are announced, before any byte of them has come: what
	// one system call reads. atOnceBlobs is how many they are at most.
	atOnceBytes = 256 << 10
	atOnceBlobs = 64
)

// arrivals are blobs of a message that are being read, in their order. Of one goroutine.
type arrivals struct {
	ids   []uint32
	blobs []schema.Blob
	left  [][]byte // what is still to come of each
}

// deliver gives the answers of a message of n bytes to those who wait for them. They are read to where they stay,
// several by one system call.
func (l *Link) deliver(w *wire, n int) error {
	answers, err := readAnswers(w, n)
	if err != nil {
		return err
	}
	n -= answersHead + len(answers)*answerBytes
	var come arrivals
	defer come.discard()
	bytes := 0
	for _, a := range answers {
		n -= a.Size
		l.mu.Lock()
		to := l.waiting[a.ID]
		asked := int32(a.ID-l.next) <= 0 // numbers begin anew some day
		l.mu.Unlock()
		switch {
		case !asked:
			return errAnswers
		case to != nil && a.Status == Here && int64(a.Size) != to.size:
			return fmt.Errorf("%w: it has sent %d bytes of a blob of %d", schema.ErrUnavailable, a.Size, to.size)
		case to != nil && a.Status == Here && a.Size > 0:
			come.add(a)
			if bytes += a.Size; bytes < atOnceBytes && len(come.ids) < atOnceBlobs {
				continue
			}
			bytes = 0
			if err := l.arrive(w, &come); err != nil {
				return err
			}
			continue
		}
		if err := l.arrive(w, &come); err != nil { // what comes before it
			return err
		}
		bytes = 0
		var is answer
		switch {
		case to == nil: // it has left
			err = discard(w, a.Size)
		case a.Status != Here:
			is.err, err = readWhy(w, a)
		}
		if err != nil {
			return err
		}
		l.answered(a.ID, is)
	}
	if err := l.arrive(w, &come); err != nil {
		return err
	}
	return discard(w, n) // what a later version says
}

// add makes memory ready for a blob.
func (c *arrivals) add(a Answer) {
	b := newBuffer(a.Size)
	memory := b.memory[:a.Size:a.Size]
	c.ids, c.blobs, c.left = append(c.ids, a.ID), append(c.blobs, schema.NewBlob(memory, b)), append(c.left, memory)
}

// arrive reads all blobs for which memory was made ready. Each is handed over as it is whole.
func (l *Link) arrive(w *wire, c *arrivals) error {
	for len(c.left) > 0 {
		n, err := w.fill(c.left)
		if err != nil {
			return err
		}
		whole := 0
		for n > 0 {
			if first := c.left[whole]; n < len(first) {
				c.left[whole] = first[n:]
				break
			}
			n -= len(c.left[whole])
			whole++
		}
		for i := range whole {
			l.answered(c.ids[i], answer{blob: c.blobs[i]})
		}
		c.ids, c.blobs, c.left = c.ids[whole:], c.blobs[whole:], c.left[whole:]
	}
	*c = arrivals{}
	return nil
}

// discard releases what has not come.
func (c *arrivals) discard() {
	for _, b := range c.blobs {
		b.Release()
	}
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
