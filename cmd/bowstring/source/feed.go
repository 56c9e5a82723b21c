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

// feed reads the headers of tars, several at once, and hands them out in order, tar by
// tar. It skips the bytes between them, except wanted members. In a bucket that saves
// bytes and costs requests: members of a few hundred kilobytes and fewer are cheaper read
// through.
type feed struct {
	files  *Files
	ctx    context.Context //nolint:containedctx // ends the reading
	cancel context.CancelFunc
	walk   bool // members that are not wanted are passed over; else all is read where that is cheaper
	want   func(m tarMember) bool
	// unpacked leaves out tars that are compressed.
	unpacked bool
	// kept is where what is read is kept, or, once it was read, taken from; nil for neither.
	kept  *keptTars
	again bool // it was read, into kept

	shards  []shard
	in      sequence // where all is read
	next    int      // shard that is begun next
	begun   map[int]*feedShard
	running sync.WaitGroup
}

// feedShard is a tar that is being read.
type feedShard struct {
	members chan feedMember
	end     error    // what ended it, once members is closed; io.EOF if nothing is wrong
	cut     error    // why it is not whole, though nothing else is wrong
	packed  bool     // it is compressed, and was not read where that was left out
	keep    *keptTar // what is handed out is kept there; nil where it is not
}

// feedMember is a member of a tar, and its content if it is wanted.
type feedMember struct {
	tarMember
	data   []byte
	err    error               // why it cannot be read
	room   *semaphore.Weighted // that its content takes until it is taken; nil where it takes none
	weight int64               // of its content, in room
}

// keptTars are the headers of tars that were read once, and need not be read again: where memory is enough, all that a tar
// has handed out. It is for one feed that reads, and then one more.
type keptTars struct {
	left atomic.Int64 // bytes that there is room for
	tars map[int]*keptTar
}

// keptTar is a tar that was read.
type keptTar struct {
	of      *keptTars
	members []feedMember
	bytes   int64
	over    bool // there was no room for all of it
	end     error
	cut     error
	packed  bool
}

const (
	// keptBytes is how much memory kept headers take.
	keptBytes = 64 << 20
	// keptMember is what a member takes there besides its name and its content.
	keptMember = 256
)

func newKeptTars() *keptTars {
	k := &keptTars{tars: map[int]*keptTar{}}
	k.left.Store(keptBytes)
	return k
}

// add keeps a member.
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

// has reports whether all of the tar is there, with the content of what is wanted.
func (k *keptTar) has(want func(tarMember) bool) bool {
	return k != nil && !k.over && !k.packed && k.end != nil && !slices.ContainsFunc(k.members, func(m feedMember) bool {
		return m.data == nil && m.problem == "" && m.size <= maxText && want(m.tarMember)
	})
}

const (
	// feedMembers is how many members of a tar are read ahead of their use, at most.
	feedMembers = 256
	// feedBytes is how many bytes their contents have, but that one may have more.
	feedBytes = 4 << 20
	// feedTars is how many tars in a bucket are read at once: their headers are found one by one.
	feedTars = 32
	// windowBytes is how much of a tar in a bucket is read at once for a header: small members that follow come along.
	windowBytes = 4 << 10
	// largeMember is the size from which on members in a bucket are passed over: in the time of a request about as much
	// is read.
	largeMember = 1 << 20
)

// newFeed begins to read tars. close ends it.
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

// close ends what is being read, and waits for it. nil reads nothing.
func (f *feed) close() {
	if f == nil {
		return
	}
	f.cancel()
	f.running.Wait()
	f.in.close()
}

// shard returns a tar. The caller takes its members until there is none left. Tars are asked for in their
// order. It is nil if f is.
func (f *feed) shard(n int) *feedShard {
	if f == nil {
		return nil
	}
	atOnce := 1
	if f.files.bucket() != nil {
		atOnce = feedTars
		if !f.walk {
			atOnce = 4 // they share the memory of read-ahead
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
	s := f.begun[n]
	delete(f.begun, n)
	return s
}

func (f *feed) open(path string) (*File, error) {
	if f.walk {
		return f.files.openParts(f.ctx, path, windowBytes)
	}
	return f.in.open(path)
}

// replay hands out a tar that was kept.
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

// read reads a tar.
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
	if t.packed && f.walk { // it is read from its beginning to its end in any case
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

// taken says that the content of a member is used no more.
func (s *feedShard) taken(m feedMember) {
	s.keep.add(m)
	if m.room != nil {
		m.room.Release(m.weight)
	}
}

// largeMembers says whether the members of tars are so large that passing over them is worth a request each, by the
// first members of the first tar.
func (f *Files) largeMembers(ctx context.Context, shards []shard) bool {
	size, n := f.memberSize(ctx, shards)
	return n > 0 && size/n >= largeMember
}

// apart is how far some members of a tar are apart in all, and how many they are.
type apart struct{ size, n int64 }

// memberSize reads the first headers of the first tar, once, and returns how many there are, and how far apart in all. Each of
// large members is a request; of tars that are small together one header is enough.
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

// interrupted says whether an error is one of the way to the data, and says nothing about them: reading cannot go on.
func interrupted(err error) bool {
	return errors.Is(err, schema.ErrUnavailable) || errors.Is(err, schema.ErrDenied) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded)
}
