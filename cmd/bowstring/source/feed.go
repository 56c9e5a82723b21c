package source

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"bowstring/schema"
)

// feed reads the headers of tars, several tars at once, and delivers the members in
// order, tar by tar.
//
// It skips the bytes between headers, except wanted members. In a bucket that saves bytes
// and costs requests. Members of a few hundred kilobytes or less are cheaper to read
// through, so feed chooses by their size.
//
// One goroutine calls its methods. Each open tar has a goroutine of its own, which blocks
// on a bounded channel and ends with close.
type feed struct {
	files  *Files
	ctx    context.Context //nolint:containedctx // ends the reading
	cancel context.CancelFunc
	// walk skips members that are not wanted. Otherwise all is read where that is
	// cheaper.
	walk bool
	want func(m tarMember) bool
	// unpacked leaves out tars that are compressed.
	unpacked bool
	// kept stores what is read; with again it is what an earlier feed stored. nil for
	// neither.
	kept  *keptTars
	again bool // kept is consumed, not written

	shards []shard
	// in reads tars from start to end, with read-ahead shared by all.
	in sequence
	// next is the shard that is started next. begun has the started ones, until shard
	// returns them.
	next    int
	begun   map[int]*feedShard
	running sync.WaitGroup
}

// feedShard is a tar that is being read. The fields after members are valid once
// members is closed.
type feedShard struct {
	members chan feedMember
	// end is the error that ended the tar; io.EOF for a proper end.
	end error
	// cut is why the tar is not complete, although nothing else is wrong with it; see
	// checkEnd.
	cut error
	// packed means that the tar is compressed, and with feed.unpacked was not read.
	packed bool
	// keep collects the delivered members; nil if they are not kept.
	keep *keptTar
}

// feedMember is a member of a tar, with its content if that is wanted.
type feedMember struct {
	tarMember
	data []byte
	err  error // why the content cannot be read
	// room is the semaphore that holds weight bytes for the content until taken releases
	// them; nil for none.
	room   *semaphore.Weighted
	weight int64
}

// keptTars are the members of tars from a first pass, so that a second pass reads no tar
// again that fits in memory. One feed writes them, then one more feed consumes them.
type keptTars struct {
	// left is the number of bytes still free of keptBytes.
	left atomic.Int64
	tars map[int]*keptTar
}

// keptTar is one tar of a first pass.
type keptTar struct {
	of      *keptTars
	members []feedMember
	bytes   int64
	// over means that the tar does not fit, so that the second pass reads it again.
	over   bool
	end    error
	cut    error
	packed bool
}

const (
	// keptBytes is the memory for kept headers and texts, over all tars.
	keptBytes = 64 << 20
	// keptMember is the estimated size of a member in bytes besides name and content.
	keptMember = 256
)

func newKeptTars() *keptTars {
	k := &keptTars{tars: map[int]*keptTar{}}
	k.left.Store(keptBytes)
	return k
}

// add keeps a member, or frees the whole tar if there is no room for it or the member is
// unreadable.
func (k *keptTar) add(m feedMember) {
	if k == nil || k.over {
		return
	}
	m.room = nil
	n := int64(keptMember + 2*len(m.name) + len(m.data))
	if k.bytes += n; k.of.left.Add(-n) < 0 || m.err != nil {
		k.of.left.Add(k.bytes)
		k.over, k.members = true, nil
		return
	}
	k.members = append(k.members, m)
}

// has reports whether the whole tar is kept, including the content of all members that
// want selects. The second pass may want more than the first.
func (k *keptTar) has(want func(tarMember) bool) bool {
	return k != nil && !k.over && !k.packed && k.end != nil && !slices.ContainsFunc(k.members, func(m feedMember) bool {
		return m.data == nil && m.problem == "" && m.size <= maxText && want(m.tarMember)
	})
}

const (
	// feedMembers is the largest number of members of a tar that are read before their
	// use.
	feedMembers = 256
	// feedBytes is the size of their contents. A single larger member is allowed.
	feedBytes = 4 << 20
	// feedTars is how many tars of a bucket are read at once. Each header must be known
	// before the next can be requested, so that only parallel tars hide the latency.
	feedTars = 32
	// windowBytes is how much one request for a header reads of a tar in a bucket. Small
	// members that follow come with it.
	windowBytes = 4 << 10
	// largeMember is the size in bytes from which members in a bucket are skipped. About
	// as much is read in the time of a request.
	largeMember = 1 << 20
)

// newFeed starts reading tars. The caller calls close.
func newFeed(ctx context.Context, files *Files, shards []shard, walk bool, want func(tarMember) bool) *feed {
	f := &feed{files: files, walk: walk || files.bucket() == nil, want: want, shards: shards,
		begun: map[int]*feedShard{}}
	f.ctx, f.cancel = context.WithCancel(ctx)
	if !f.walk && !files.small(paths(shards)) {
		f.walk = files.largeMembers(ctx, shards)
	}
	f.in = files.inOrder(f.ctx, paths(shards))
	return f
}

// close cancels all reading and waits for it. A nil feed is allowed.
func (f *feed) close() {
	if f == nil {
		return
	}
	f.cancel()
	f.running.Wait()
	f.in.close()
}

// shard returns tar n, and starts the tars after it. Callers ask in ascending order, and
// receive all members of a tar before the next. The result is nil if f is.
func (f *feed) shard(n int) *feedShard {
	if f == nil {
		return nil
	}
	atOnce := 1
	if f.files.bucket() != nil {
		atOnce = feedTars
		if !f.walk {
			atOnce = 4 // they share the memory for read-ahead
		}
	}
	for f.next = max(f.next, n); f.next < min(n+atOnce, len(f.shards)); f.next++ {
		if !f.shards[f.next].read() {
			continue
		}
		s := &feedShard{members: make(chan feedMember, feedMembers)}
		f.begun[f.next] = s
		path := f.shards[f.next].path
		var again *keptTar
		switch {
		case f.kept != nil && f.again:
			if again = f.kept.tars[f.next]; !again.has(f.want) {
				again = nil
			}
			delete(f.kept.tars, f.next)
		case f.kept != nil:
			s.keep = &keptTar{of: f.kept}
			f.kept.tars[f.next] = s.keep
		}
		f.running.Go(func() {
			defer close(s.members)
			if again != nil {
				s.end = f.replay(s, again)
				return
			}
			s.end = f.read(s, path)
			if k := s.keep; k != nil {
				k.end, k.cut, k.packed = s.end, s.cut, s.packed
			}
		})
	}
	// The caller owns the shard now.
	s := f.begun[n]
	delete(f.begun, n)
	return s
}

// open opens a tar for headers alone, or in the sequence of those that are read through.
func (f *feed) open(path string) (*File, error) {
	if f.walk {
		return f.files.openParts(f.ctx, path, windowBytes)
	}
	return f.in.open(path)
}

// replay delivers a kept tar, and frees its memory.
func (f *feed) replay(s *feedShard, k *keptTar) error {
	s.cut, s.packed = k.cut, k.packed
	for _, m := range k.members {
		select {
		case s.members <- m:
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		}
	}
	k.of.left.Add(k.bytes)
	return k.end
}

// read reads a tar and returns the error that ended it. If a usable index names the
// members, byIndex has delivered them without reading the headers.
func (f *feed) read(s *feedShard, path string) error {
	if end, done := f.byIndex(s, path); done {
		s.cut = end.cut
		return end.err
	}
	file, err := f.open(path)
	if err != nil {
		return err
	}
	t, err := openTar(file, true)
	if err != nil {
		return err
	}
	if s.packed = t.packed; t.packed && f.unpacked {
		return t.close()
	}
	// A compressed tar cannot be skipped through, so it is read in sequence.
	if t.packed && f.walk {
		if err := t.close(); err != nil {
			return err
		}
		if t, err = readTar(f.in.open(path)); err != nil {
			return err
		}
	}
	defer func() { _ = t.close() }()
	put := f.putInto(f.ctx, s.members, feedBytes)
	for {
		m, err := t.next()
		if errors.Is(err, io.EOF) {
			s.cut = t.checkEnd()
		}
		if err == nil {
			err = put(m, t.content)
		}
		if err != nil {
			return err
		}
	}
}

// taken releases the content of a member, after it has been kept. The caller does not use
// m.data afterwards.
func (s *feedShard) taken(m feedMember) {
	s.keep.add(m)
	if m.room != nil {
		m.room.Release(m.weight)
	}
}

// largeMembers reports whether the members are large enough that skipping each is worth a
// request. It samples the first members of the first tar.
func (f *Files) largeMembers(ctx context.Context, shards []shard) bool {
	size, n := f.memberSize(ctx, shards)
	return n > 0 && size/n >= largeMember
}

// apart is the total distance between some headers of a tar, and how many there are.
type apart struct{ size, n int64 }

// memberSize reads the first headers of the first tar, once, and returns the total
// distance between them and their number. Each header of a large member costs a request,
// so it stops after four of these, and after one if all tars are small together.
func (f *Files) memberSize(ctx context.Context, shards []shard) (size, n int64) {
	if f.tars.n > 0 {
		return f.tars.size, f.tars.n
	}
	most, mostLarge := int64(8), int64(4)
	if f.small(paths(shards)) {
		most = 1
	}
	for _, sh := range shards {
		if !sh.read() {
			continue
		}
		file, err := f.openParts(ctx, sh.path, windowBytes)
		if err != nil {
			return 0, 0
		}
		t, err := openTar(file, true)
		if err != nil {
			return 0, 0
		}
		defer func() { _ = t.close() }()
		if t.packed {
			return 0, 0
		}
		for n < most && (n < mostLarge || size/n < 4*windowBytes) {
			h, err := t.header()
			if err != nil {
				break
			}
			size += tarBlock + wholeBlocks(h.Size)
			n++
		}
		f.tars = apart{size, n}
		return size, n
	}
	return 0, 0
}

// interrupted reports whether an error concerns the connection to the data, and not the
// data. Reading cannot continue then, and a sample must not be reported as bad.
func interrupted(err error) bool {
	return errors.Is(err, schema.ErrUnavailable) || errors.Is(err, schema.ErrDenied) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded)
}
