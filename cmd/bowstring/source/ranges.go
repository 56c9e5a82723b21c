package source

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"bowstring/fetch/object"
	"bowstring/schema"
)

const (
	// rangesAtOnce is how many ranges of keys are listed at once.
	rangesAtOnce = 16
	// rangePages is how many pages a list must have before it is divided. A short list is
	// not worth a probe.
	rangePages = 8
	// splitPages is how many pages a range must have before it is divided.
	splitPages = 4
	// Probes that find nothing are limited to moreProbes, plus one for probeShare pages:
	// each costs a request.
	probeShare, moreProbes = 4, 16
)

// errNoAfter means that the server ignores the key after which a list should begin.
var errNoAfter = errors.New("the server lists from the beginning on")

// lister lists the objects that begin with a prefix, in parallel. A list is requested
// page by page. Each page takes a round trip. A sequential list of 100 million keys
// has 100,000 pages.
//
// Keys are divided into ranges, which are listed at once. Nothing shows in advance where
// keys are. A probe therefore begins in the middle of what is left of a range. If it
// finds keys, it is the list of the second half already, from its first page on.
type lister struct {
	from   object.Bucket
	prefix string
	cancel context.CancelCauseFunc
	run    sync.WaitGroup

	mu     sync.Mutex
	ranges []*keyRange // in ascending order
	active int         // running goroutines
	pages  int
	empty  int  // probes that found nothing
	one    bool // the server cannot begin a list after a key
}

// keyRange is a range of keys that one goroutine lists.
type keyRange struct {
	// Fields below are guarded by the mutex of the lister.
	at      string // keys up to it have been listed
	until   string // keys up to it belong to the range; "" means all
	pages   int    // since the range was divided
	probing bool
	whole   bool // the range cannot be divided
	done    bool

	// The goroutine of the range owns these fields until it has ended.
	keys keyList
	odd  oddKeys
}

// listRanges lists the objects that begin with a prefix, in ascending order. The first
// error ends all goroutines.
func listRanges(ctx context.Context, from object.Bucket, prefix string) (all keyList, odd oddKeys, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := &lister{from: from, prefix: prefix, cancel: cancel, active: 1, ranges: []*keyRange{{}}}
	first := l.ranges[0]
	l.run.Go(func() { l.list(ctx, first) })
	l.run.Wait()
	if err := context.Cause(ctx); err != nil {
		return keyList{}, oddKeys{}, err
	}
	// The ranges are in ascending order and do not overlap.
	for _, r := range l.ranges {
		all.join(&r.keys)
		if r.odd.n > 0 {
			odd = oddKeys{odd.n + r.odd.n, r.odd.key}
		}
	}
	return all, odd, nil
}

// list lists a range to its end. It retries as listWhole does.
func (l *lister) list(ctx context.Context, r *keyRange) {
	err := listWhole(ctx, &r.keys, func() error {
		return l.listOn(ctx, r, l.pagesFrom(ctx, l.at(r), func() error { return l.paged(ctx, r) }))
	})
	if err != nil {
		l.cancel(err)
		return
	}
	l.end(ctx, r)
}

// at returns the key up to which a range has been listed.
func (l *lister) at(r *keyRange) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return r.at
}

// listing yields objects as object.Bucket lists them.
type listing func(yield func(object.Info, error) bool)

// pagesFrom lists the keys after a key. It calls paged before each page but the first.
func (l *lister) pagesFrom(ctx context.Context, after string, paged func() error) listing {
	begun := false
	return listing(l.from.List(ctx, object.ListOptions{Prefix: l.prefix, After: after, Page: func(context.Context) error {
		if begun {
			return paged()
		}
		begun = true
		return nil
	}}))
}

// paged counts a page, and starts probes if there is a reason.
func (l *lister) paged(ctx context.Context, r *keyRange) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pages++
	r.pages++
	l.splitLocked(ctx)
	return nil
}

// splitLocked starts probes, first for the ranges with the most pages. l.mu is held.
func (l *lister) splitLocked(ctx context.Context) {
	for !l.one && l.active < rangesAtOnce && l.pages >= rangePages && l.empty <= moreProbes+l.pages/probeShare {
		var most *keyRange
		for _, r := range l.ranges {
			if !r.done && !r.probing && !r.whole && r.pages >= splitPages && (most == nil || r.pages > most.pages) {
				most = r
			}
		}
		if most == nil {
			return
		}
		mid, ok := between(l.prefix, most.at, most.until)
		if !ok {
			most.whole = true
			continue
		}
		most.probing = true
		l.active++
		l.run.Go(func() { l.probe(ctx, most, mid) })
	}
}

// probe lists the keys after mid, a key within the range of, if there are any. Its first
// key shows whether the range is divided.
func (l *lister) probe(ctx context.Context, of *keyRange, mid string) {
	r := &keyRange{at: mid}
	taken := false
	paged := func() error {
		if !taken { // a page without any key after mid
			return errNoAfter
		}
		return l.paged(ctx, r)
	}
	err := l.listOn(ctx, r, func(yield func(object.Info, error) bool) {
		for o, err := range l.pagesFrom(ctx, mid, paged) {
			if !taken {
				if err != nil {
					l.stopProbing(of, errors.Is(err, errNoAfter))
					return
				}
				if taken = l.takeOver(of, r, mid, o.Key); !taken {
					return
				}
			}
			if !yield(o, err) {
				return
			}
		}
		if !taken {
			l.takeOver(of, r, mid, "")
		}
	})
	switch {
	case !taken:
		l.end(ctx, nil)
	case err == nil:
		l.end(ctx, r)
	case errors.Is(err, schema.ErrUnavailable) && ctx.Err() == nil:
		l.list(ctx, r)
	default:
		l.cancel(err)
	}
}

// stopProbing records that a probe failed. forGood says that all would.
func (l *lister) stopProbing(of *keyRange, forGood bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.probing = false
	if l.empty++; forGood {
		l.one = true
	}
}

// takeOver divides a range: the part after mid becomes r. first is the first key found;
// "" if there is none. It returns false if r would be empty.
func (l *lister) takeOver(of, r *keyRange, mid, first string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.probing = false
	if of.done || of.at >= mid {
		l.empty++ // the range was listed up to mid meanwhile
		return false
	}
	// Nothing follows mid in the range, so the range ends there.
	if first == "" || of.until != "" && first > of.until {
		l.empty++
		of.until = mid
		return false
	}
	r.until, of.until = of.until, mid
	of.pages = 0
	l.ranges = slices.Insert(l.ranges, slices.Index(l.ranges, of)+1, r)
	return true
}

// end ends a goroutine. r is the range that it has listed; nil for none. Another probe
// may take its place.
func (l *lister) end(ctx context.Context, r *keyRange) {
	if r != nil {
		r.keys.seal()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r != nil {
		r.done = true
	}
	l.active--
	l.splitLocked(ctx)
}

// listOn adds the objects of a list to a range, up to the end of the range.
func (l *lister) listOn(ctx context.Context, r *keyRange, list listing) error {
	for o, err := range list {
		if err != nil {
			return err
		}
		if !l.reach(r, o.Key) {
			return nil
		}
		if !r.odd.isFile(o) {
			continue
		}
		if err := r.keys.add(o); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// reach advances a range to a key. It returns false if the key is beyond the range, which
// another goroutine may have shortened.
func (l *lister) reach(r *keyRange, key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.until != "" && key > r.until {
		return false
	}
	r.at = key
	return true
}

const (
	lowRune  = 0x20 // some servers reject control characters, which are below it
	highRune = 0x7f // above the letters of most keys
)

// between returns a text about halfway between two keys that begin with a prefix: after
// after and before until. until "" means the end of the prefix. The text is valid UTF-8,
// because keys must be. ok is false if there is none.
func between(prefix, after, until string) (mid string, ok bool) {
	if !utf8.ValidString(after) || !utf8.ValidString(until) {
		return "", false
	}
	at, bound := len(prefix), rune(0) // offset of the first rune that differs, and until's rune there
	if until != "" {
		for at = 0; at < min(len(after), len(until)) && after[at] == until[at]; at++ {
		}
		for at > 0 && at < len(until) && !utf8.RuneStart(until[at]) {
			at--
		}
		if at == len(until) {
			return "", false
		}
		bound, _ = utf8.DecodeRuneInString(until[at:])
	}
	for {
		// The rune halfway between the first runes that differ. If they are neighbours,
		// the next rune of after decides.
		low, size := rune(0), 0
		if at < len(after) {
			low, size = utf8.DecodeRuneInString(after[at:])
		}
		if bound == 0 {
			bound = highRune
			if low >= highRune {
				bound = utf8.MaxRune
			}
		}
		m := max(low+(bound-low)/2, lowRune)
		if m >= 0xd800 && m <= 0xdfff { // surrogates are no characters
			m = 0xd7ff
		}
		if m > low && m < bound {
			return after[:at] + string(m), true
		}
		if at < len(until) && strings.HasPrefix(until, after[:min(at, len(after))]) {
			// All that begins with the rune of until, and is not after it.
			if mid = until[:at] + string(bound); bound == low+1 && mid < until && mid > after {
				return mid, true
			}
		}
		if size == 0 {
			return "", false
		}
		at, bound = at+size, 0 // continue with the next rune of after, without an upper bound
	}
}
