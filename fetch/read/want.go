package read

import (
	"context"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// Want is a blob that somebody wants.
type Want struct {
	Ref schema.BlobRef
	// At is where it was found to be wanted; the zero Place if that is nowhere in
	// particular, and then no tier keeps the blob.
	At spill.Place
	// Use is when it is used: see [Cell.Use].
	Use int64
	// Context is on whose behalf: what it carries is seen by the store. That it
	// ends does not end the read, which others may want: see [Reader.Leave].
	Context context.Context //nolint:containedctx // its values alone are used
	// Since is when it was first wanted, where that was before the read begins. It is part of the time that the read
	// has while the store says nothing: those that wait for their turn do not begin their time then.
	Since time.Time
	// To is told what became of it, once, with Token.
	To Receiver
	// Account is the stream's, nil if nobody keeps one.
	Account *Account
	// Trace is the stream's, nil if it is not traced.
	Trace *Trace
	Token Token
	// Here says that no other node is asked: the blob is for one of them, and two that
	// take each other for its owner would wait for each other; or it is at no place
	// for which the other would keep it.
	Here bool
	// Late says that the receiver compares the blob's bytes with the reference himself if they are said to be unchecked
	// ([schema.Blob.Unchecked]), and reads what is wrong by [Reader.GetAt].
	Late bool
}

// since is when the blob was wanted, of a read that begins now.
func (w *Want) since(now time.Time) time.Time {
	if w.Since.IsZero() {
		return now
	}
	return w.Since
}

// Token says to a Receiver which of its wants something is about.
type Token struct {
	Of any // a pointer, or nil
	N  int
}

// Receiver is told what became of what it wanted.
type Receiver interface {
	// Receive is called by a goroutine of the reader, with no lock held. It must not
	// block for long. The blobs are the receiver's to release; the list is the reader's again.
	Receive(list []Outcome)
	// More is called likewise when few of its wants wait for their turn: see [Place].
	More()
}

// Outcome is what became of a want.
type Outcome struct {
	Token Token
	Ref   schema.BlobRef
	Blob  schema.Blob
	Err   error
	Tier  int           // index of the tier that had it, or InWindow; that of the last one where there was an error
	Took  time.Duration // since the last attempt at it began
	At    time.Time     // when it came
}

// waiter is who wants a blob.
type waiter struct {
	to    Receiver
	token Token
}

// inbox is a Receiver of single blobs.
type inbox chan Outcome

// Receive implements Receiver. There is room for each outcome.
func (c inbox) Receive(list []Outcome) {
	for _, o := range list {
		c <- o
	}
}

// More implements Receiver.
func (inbox) More() {}

// told is what is to be told when the reader's lock is not held.
type told struct {
	ended []ended    // reads that are over
	to    []Receiver // of each outcome
	list  []Outcome
	more  []Receiver
	idle  Waker // told that nothing is wanted that there is room for, if not nil

	traced []traced
}

// traced is an attempt of a read that is traced.
type traced struct {
	attempt Attempt
	began   time.Time
	slow    bool
	err     error
}

// ended is a read that is over, and what came of it.
type ended struct {
	read *read
	o    Outcome
}

func (t *told) add(to Receiver, o Outcome) {
	t.to, t.list = append(t.to, to), append(t.list, o)
}

// tell offers blobs to the tiers above the ones that had them, and tells those who wait, each once of all that is
// theirs. Meanwhile the reads hold their blobs, so that nobody reads them again.
func (t *told) tell() {
	for _, a := range t.traced {
		a.attempt.read.trace.attempt(a.attempt, a.began, a.slow, a.err)
	}
	for i := range t.ended {
		rd, o := t.ended[i].read, &t.ended[i].o
		rd.offer(o)
		if o.Err == nil {
			o.Blob = schema.NewBlob(o.Blob.Bytes(), rd)
		}
		o.Token = rd.first.token
		t.add(rd.first.to, *o)
		for _, w := range rd.others {
			o.Token = w.token
			t.add(w.to, *o)
		}
	}
	for from := 0; from < len(t.list); {
		upTo := from + 1
		for upTo < len(t.list) && t.to[upTo] == t.to[from] {
			upTo++
		}
		t.to[from].Receive(t.list[from:upTo])
		from = upTo
	}
	for _, to := range t.more {
		to.More()
	}
	idle := t.idle
	t.clear()
	if idle != nil {
		idle.Wake()
	}
}

func (t *told) clear() {
	t.traced = nil
	clear(t.ended)
	clear(t.to)
	clear(t.list)
	clear(t.more)
	t.ended, t.to, t.list, t.more, t.idle = t.ended[:0], t.to[:0], t.list[:0], t.more[:0], nil
}
