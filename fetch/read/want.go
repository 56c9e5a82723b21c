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
	// block for long. The blob is the receiver's to release.
	Receive(t Token, o Outcome)
}

// Outcome is what became of a want.
type Outcome struct {
	Ref  schema.BlobRef
	Blob schema.Blob
	Err  error
	Tier int           // index of the tier that had it, or InWindow; that of the last one where there was an error
	Took time.Duration // since the last attempt at it began
	At   time.Time     // when it came
}

// Verdict is what came of [Reader.Try].
type Verdict int

const (
	// Full says that the tier which has the blob has no room for another read.
	Full Verdict = iota
	// Begun says that a read was begun, whose first attempt is the caller's to make:
	// by [Reader.Start], or in a goroutine of the reader that has asked for more.
	Begun
	// Joined says that it comes with a read that is under way.
	Joined
	// Held says that a window holds it, and that it was handed out.
	Held
	// Elsewhere says that no window has it any more.
	Elsewhere
	// Enough says that its tenant has all in flight that it may, though there may be
	// room: see [Options.Freed].
	Enough
)

// waiter is who wants a blob.
type waiter struct {
	to    Receiver
	token Token
}

// inbox is a Receiver of single blobs.
type inbox chan Outcome

// Receive implements Receiver. There is room for each outcome.
func (c inbox) Receive(_ Token, o Outcome) { c <- o }
