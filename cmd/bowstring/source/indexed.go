package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"gopkg.in/yaml.v3"
)

// UseIndex says how an index next to a tar in a bucket is used. An index is advice: it is
// compared with headers. If they differ, the headers count, and a note says so.
type UseIndex string

// Ways to use an index.
const (
	// IndexSample takes the members from an index that names them, and compares a sample
	// with their headers.
	IndexSample UseIndex = "sample"
	// IndexAll takes the places where headers may begin from an index, so that several
	// are read at once. It reads all headers.
	IndexAll UseIndex = "all"
	// IndexNone reads no index.
	IndexNone UseIndex = "none"
)

const (
	// indexChecks is how many members of a tar are compared with their headers, in
	// addition to the first, the last, and those after a gap.
	indexChecks = 32
	// mostChecks is the largest number of comparisons. If more were necessary, all
	// headers are read instead.
	mostChecks = 4 * indexChecks
	// segmentMembers is how many members of a tar are read in sequence, while other
	// segments are read in parallel.
	segmentMembers = 64
	// segmentWindows is the least length in windows of a part that is read from a header
	// on.
	segmentWindows = 16
	// mostMembers bounds the members that an index names, and so its memory.
	mostMembers = 1 << 22
	// tarPadding bounds the zeros after the last member. tar fills the last record, of 10
	// KiB by default.
	tarPadding = 1 << 20
)

// tarContents is the content of an index of a tar.
type tarContents struct {
	index string // path of the index
	size  int64  // size of the tar
	// members are in the order of the tar; nil if the index does not name them.
	members []tarMember
	// gap is the most frequent distance from the end of a member to the content of the
	// next: the size of headers.
	gap int64
	// starts are the offsets at which samples may begin, in ascending order.
	starts []int64
}

// contents reads the index of a tar in a bucket; nil if there is none that fits the tar.
// An index that does not fit is noted. Tars on disk need no index: a seek costs nothing.
func (f *Files) contents(ctx context.Context, tar string) (*tarContents, error) {
	if f.bucket() == nil || f.indexes == IndexNone || !strings.HasSuffix(tar, ".tar") {
		return nil, nil //nolint:nilnil // there is none
	}
	info, err := f.stat(tar)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // which shows when the tar is opened
	}
	for _, kind := range []TarIndex{DALIIndex, EnergonIndex} {
		// DALI's index is tried first, because only it names the members.
		index := kind.Name(tar)
		if at, err := f.stat(index); err != nil || !at.Mode().IsRegular() {
			continue
		}
		data, err := f.readWhole(ctx, index, maxIndex)
		if interrupted(err) {
			return nil, err
		}
		c := &tarContents{index: index, size: info.Size()}
		if err == nil {
			err = c.parse(data)
		}
		if err == nil {
			return c, nil
		}
		f.differs(index, tar, err.Error())
	}
	return nil, nil //nolint:nilnil // there is none
}

// differs notes that an index does not fit its tar.
func (f *Files) differs(index, tar, what string) {
	f.differing.add(fmt.Sprintf("the index %s is not one of %s, and was not used: %s", Quoted(f.shown(index)),
		Quoted(f.shown(tar)), what))
}

// differing collects the notes about indexes that differ from their tars. It is safe for
// concurrent use.
type differing struct {
	mu   sync.Mutex
	said []string
	n    int
}

// mostDiffering is how many such notes are kept; the rest are counted.
const mostDiffering = 20

// add keeps a note once.
func (d *differing) add(note string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Contains(d.said, note) {
		return
	}
	if d.n++; len(d.said) < mostDiffering {
		d.said = append(d.said, note)
	}
}

// notes returns the notes, sorted.
func (d *differing) notes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	notes := slices.Clone(d.said)
	slices.Sort(notes) // tars are read in no fixed order
	if more := d.n - len(notes); more > 0 {
		notes = append(notes, fmt.Sprintf("%d more indexes of tars were not used", more))
	}
	return notes
}

// parse reads an index of any kind. Its error is the reason why the index does not fit
// the tar.
//
// Energon's index is a list of 64-bit little-endian offsets: the beginning of each
// sample, and the end of the last.
func (c *tarContents) parse(data []byte) error {
	switch {
	case bytes.HasPrefix(data, []byte("v1.")):
		return c.parseDALI(string(data))
	case len(data) < 16 || len(data)%8 != 0 || len(data)/8 > mostMembers:
		return fmt.Errorf("%d bytes are neither offsets nor an index of DALI", len(data))
	}
	last := int64(-1)
	for ; len(data) > 0; data = data[8:] {
		at := binary.LittleEndian.Uint64(data)
		switch {
		case at > uint64(c.size):
			return fmt.Errorf("it names byte %d, and the tar has %d", at, c.size)
		case int64(at) <= last:
			return fmt.Errorf("it names byte %d behind %d: offsets ascend", at, last)
		case at%tarBlock != 0 && at != uint64(c.size):
			return fmt.Errorf("it names byte %d, where no header of a tar begins", at)
		}
		last = int64(at)
		c.starts = append(c.starts, last)
	}
	c.starts = c.starts[:len(c.starts)-1] // the last offset is the end of the samples
	return nil
}

// parseDALI reads an index of DALI, version 1.1 or 1.2. The first line has the version
// and the number of samples. Each further line is a sample: for each member its
// extension, the offset of its content, its size, and in version 1.2 its name.
func (c *tarContents) parseDALI(text string) error {
	head, rest, _ := strings.Cut(text, "\n")
	version, count, _ := strings.Cut(strings.TrimSpace(head), " ")
	fields := 4
	switch version {
	case "v1.2":
	case "v1.1":
		fields = 3
	default:
		return fmt.Errorf("it is of version %.20q; want v1.1 or v1.2", version)
	}
	samples, end := 0, int64(0)
	gaps := map[int64]int{}
	for line := range strings.Lines(rest) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words)%fields != 0 {
			return fmt.Errorf("sample %d has %d words; want %d for each member", samples, len(words), fields)
		}
		c.starts = append(c.starts, end)
		samples++
		for ; len(words) > 0; words = words[fields:] {
			at, err := strconv.ParseInt(words[1], 10, 64)
			if err != nil {
				return fmt.Errorf("sample %d: %w", samples-1, err)
			}
			size, err := strconv.ParseInt(words[2], 10, 64)
			if err != nil {
				return fmt.Errorf("sample %d: %w", samples-1, err)
			}
			// A content begins at a block, after at least one block of headers, and
			// within the tar.
			if at%tarBlock != 0 || at < end+tarBlock || size < 0 || size > c.size-at || at > c.size {
				return fmt.Errorf("a member of sample %d is said to be at byte %d, with %d bytes, behind one that ends at %d, in "+
					"a tar of %d", samples-1, at, size, end, c.size)
			}
			// Most members have one header of the same size. Others have more, such as
			// long names.
			if gaps[at-end]++; gaps[at-end] > gaps[c.gap] {
				c.gap = at - end
			}
			if fields == 4 {
				if len(c.members) == mostMembers {
					return fmt.Errorf("it names more than %d members", mostMembers)
				}
				m, ok := memberNamed(words[3])
				if !ok {
					return fmt.Errorf("it names %s, which is a member of no sample", Quoted(words[3]))
				}
				m.size, m.at, m.header = size, at, end
				c.members = append(c.members, m)
			}
			end = wholeBlocks(at + size)
		}
	}
	// The number of samples shows an index that was cut off.
	if want, err := strconv.Atoi(count); err != nil || want != samples || samples == 0 {
		return fmt.Errorf("it has %d samples, and its first line says %.20q", samples, count)
	}
	return nil
}

// checks returns the members whose headers are read: the first, the last, those after a
// gap, and a random sample. The sample is the same on each run, so that an import is
// reproducible. nil means that there would be too many.
func (c *tarContents) checks() []int {
	n := len(c.members)
	all := map[int]bool{0: true, n - 1: true}
	for i := 1; i < n; i++ {
		if m := c.members[i]; m.at-m.header != c.gap {
			all[i] = true
		}
		if len(all) > mostChecks {
			return nil
		}
	}
	seed := fnv.New64a()
	_, _ = seed.Write([]byte(c.index)) // never fails
	rng := rand.New(rand.NewPCG(seed.Sum64(), uint64(c.size)))
	// With few members, all of them are compared.
	if n <= 2*indexChecks {
		for i := range n {
			all[i] = true
		}
	} else {
		for range indexChecks {
			all[rng.IntN(n)] = true
		}
	}
	list := make([]int, 0, len(all))
	for i := range all {
		list = append(list, i)
	}
	slices.Sort(list)
	return list
}

// indexError is a difference between an index and its tar. Other errors concern the
// connection.
type indexError string

// Error says what differs.
func (e indexError) Error() string { return string(e) }

// errManyGaps means that too many members follow gaps for a sample to prove anything.
var errManyGaps = errors.New("too many members stand out")

// check compares members with their headers, and the end of the last member with the end
// of the tar. It returns an indexError for a difference.
func (c *tarContents) check(ctx context.Context, files *Files, tar string, atOnce int) error {
	list := c.checks()
	if list == nil {
		return errManyGaps
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for part := range slices.Chunk(list, max(1, (len(list)+atOnce-1)/atOnce)) {
		group.Go(func() error {
			for _, i := range part {
				if err := c.checkMember(ctx, files, tar, c.members[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error { return c.checkEnd(ctx, files, tar) })
	return group.Wait()
}

// checkMember reads the header of a member. It starts at the end of the member before, so
// that headers which the index omits are found.
func (c *tarContents) checkMember(ctx context.Context, files *Files, tar string, want tarMember) error {
	file, err := files.openParts(ctx, tar, windowBytes)
	if err != nil {
		return err
	}
	t, err := openTarAt(file, want.header)
	if err != nil {
		return err
	}
	defer func() { _ = t.close() }()
	got, err := t.next()
	got.header = want.header // headers of folders may come first
	switch {
	case interrupted(err):
		return err
	case err != nil:
		return indexError(fmt.Sprintf("for %s it names byte %d, and behind byte %d, where the member before ends, stands no header "+
			"of a tar: %v", Quoted(want.name), want.at, want.header, err))
	case got != want:
		return indexError(fmt.Sprintf("it says that %s is at byte %d, with %d bytes, and there is %s at byte %d, with %d",
			Quoted(want.name), want.at, want.size, Quoted(got.name), got.at, got.size))
	}
	return nil
}

// checkEnd checks that only zeros follow the last member. A member there would be one
// that the index omits.
func (c *tarContents) checkEnd(ctx context.Context, files *Files, tar string) error {
	last := c.members[len(c.members)-1]
	end := wholeBlocks(last.at + last.size)
	left := c.size - end
	if left < 2*tarBlock || left > tarPadding {
		return indexError(fmt.Sprintf("its last member, %s, ends at byte %d, and the tar has %d", Quoted(last.name), end, c.size))
	}
	file, err := files.openParts(ctx, tar, windowBytes)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	rest := make([]byte, left)
	if _, err := file.ReadAt(rest, end); err != nil {
		return err
	}
	if i := bytes.IndexFunc(rest, func(r rune) bool { return r != 0 }); i >= 0 {
		return indexError(fmt.Sprintf("its last member, %s, ends at byte %d, and more follows at byte %d", Quoted(last.name), end,
			end+int64(i)))
	}
	return nil
}

// tarEnd is how reading a tar ended.
type tarEnd struct {
	err error // io.EOF for a proper end
	cut error // why it is not complete, although nothing else is wrong
}

// byIndex reads a tar by its index. done is false if there is no index that can be used;
// then nothing has been delivered.
//
// An index that names the members replaces all headers but a sample. Any other index lets
// several parts be read in parallel.
func (f *feed) byIndex(s *feedShard, tar string) (end tarEnd, done bool) {
	c, err := f.files.contents(f.ctx, tar)
	if c == nil || err != nil {
		return tarEnd{err: err}, err != nil
	}
	atOnce := f.lanes()
	named := f.files.indexes == IndexSample && len(c.members) > 0
	if named && !f.walk { // wanted members would be read through in any case
		named = !slices.ContainsFunc(c.members, func(m tarMember) bool { return m.problem == "" && f.want(m) })
	}
	if named {
		var differ indexError
		switch err := c.check(f.ctx, f.files, tar, atOnce); {
		case err == nil:
			return f.named(s, tar, c, atOnce), true
		case errors.As(err, &differ):
			f.files.differs(c.index, tar, differ.Error())
			return tarEnd{}, false
		case !errors.Is(err, errManyGaps):
			return tarEnd{err: err}, true
		}
	}
	if !f.walk {
		return tarEnd{}, false
	}
	file, err := f.files.openParts(f.ctx, tar, windowBytes)
	if err != nil {
		return tarEnd{err: err}, true
	}
	first, err := openTar(file, true)
	if err != nil {
		return tarEnd{err: err}, true
	}
	if first.packed {
		f.files.differs(c.index, tar, "the tar is compressed")
		return tarEnd{err: first.close()}, false
	}
	return f.started(s, tar, c, first, atOnce), true
}

// lanes returns how many parts of a tar are read at once. With many tars in progress,
// each gets few.
func (f *feed) lanes() int { return max(2, atTheSameTime/max(1, min(feedTars, len(f.shards)))) }

// named delivers the members that an index names, and reads the wanted ones.
func (f *feed) named(s *feedShard, tar string, c *tarContents, atOnce int) tarEnd {
	parts := slices.Collect(slices.Chunk(c.members, segmentMembers))
	return f.inSegments(s, len(parts), atOnce, func(ctx context.Context, i int, put putMember) *tarEnd {
		var file *File
		defer func() {
			if file != nil {
				_ = file.Close()
			}
		}()
		for _, m := range parts[i] {
			err := put(m, func(data []byte) (err error) {
				if file == nil {
					if file, err = f.files.openParts(ctx, tar, windowBytes); err != nil {
						return err
					}
				}
				_, err = file.ReadAt(data, m.at)
				return err
			})
			if err != nil {
				return &tarEnd{err: err}
			}
		}
		if i == len(parts)-1 {
			return &tarEnd{err: io.EOF}
		}
		return nil
	})
}

// started reads the headers of a tar from several places in parallel, where the index
// says that samples begin.
//
// Each part ends where the next one begins. If no header begins there, the part goes on
// to the end of the tar. All headers are found in this way, whatever the index says.
// first is the reader of the first part.
func (f *feed) started(s *feedShard, tar string, c *tarContents, first *tarReader, atOnce int) tarEnd {
	starts, last := []int64{0}, int64(0)
	for _, at := range c.starts {
		// Parts are long enough that the read-ahead of one does not cover the next.
		if at-last >= max(segmentWindows*windowBytes, c.size/int64(4*atOnce)) {
			starts, last = append(starts, at), at
		}
	}
	return f.inSegments(s, len(starts), atOnce, func(ctx context.Context, i int, put putMember) *tarEnd {
		t := first
		if i > 0 {
			file, err := f.files.openParts(ctx, tar, windowBytes)
			if err != nil {
				return &tarEnd{err: err}
			}
			if t, err = openTarAt(file, starts[i]); err != nil {
				return &tarEnd{err: err}
			}
		}
		defer func() { _ = t.close() }()
		if i+1 < len(starts) {
			t.until = starts[i+1]
		}
		for {
			m, err := t.next()
			if errors.Is(err, errReached) {
				return nil
			}
			if t.missed > 0 {
				f.files.differs(c.index, tar, fmt.Sprintf("no sample begins at byte %d, as it says", t.missed))
				t.missed = 0
			}
			if errors.Is(err, io.EOF) {
				return &tarEnd{err: err, cut: t.checkEnd()}
			}
			if err == nil {
				err = put(m, t.content)
			}
			if err != nil {
				return &tarEnd{err: err}
			}
		}
	})
}

// putMember delivers a member. read reads its content if the member is wanted. An error
// ends the reading.
type putMember func(m tarMember, read func(data []byte) error) error

// putInto returns a putMember that delivers to a channel. The contents that were read and
// not yet released have at most most bytes; a single larger one is allowed.
func (f *feed) putInto(ctx context.Context, to chan<- feedMember, most int64) putMember {
	room := semaphore.NewWeighted(most)
	return func(m tarMember, read func([]byte) error) error {
		queued := feedMember{tarMember: m}
		if m.problem == "" && m.size <= maxText && f.want(m) {
			queued.room, queued.weight = room, min(m.size, most)
			if room.Acquire(ctx, queued.weight) != nil {
				return context.Cause(ctx)
			}
			queued.data = make([]byte, m.size)
			queued.err = read(queued.data)
		}
		select {
		case to <- queued:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// inSegments runs read for n parts of a tar, atOnce at a time, and delivers their members
// in the order of the parts. The first part that returns an end is the last: members of
// later parts are dropped.
func (f *feed) inSegments(s *feedShard, n, atOnce int,
	read func(ctx context.Context, i int, put putMember) *tarEnd) tarEnd {
	ctx, cancel := context.WithCancel(f.ctx)
	var running sync.WaitGroup
	// The deferred calls run in reverse: first cancel, then the wait.
	defer running.Wait()
	defer cancel()
	type segment struct {
		members chan feedMember
		end     *tarEnd // set before members is closed
	}
	begun := make([]*segment, n)
	next := 0
	for i := range n {
		// Later segments are read while the members of the first are consumed.
		for ; next < min(i+atOnce, n); next++ {
			seg := &segment{members: make(chan feedMember, feedMembers)}
			begun[next] = seg
			at, most := next, feedBytes/int64(atOnce)
			running.Go(func() {
				defer close(seg.members)
				seg.end = read(ctx, at, f.putInto(ctx, seg.members, most))
			})
		}
		seg := begun[i]
		begun[i] = nil
		for m := range seg.members {
			select {
			case s.members <- m:
			case <-ctx.Done():
				return tarEnd{err: context.Cause(ctx)}
			}
		}
		if seg.end != nil {
			return *seg.end
		}
	}
	return tarEnd{err: io.EOF}
}

// tarCount is the number of samples that an index states for a tar.
type tarCount struct {
	index   string
	samples int64
}

const (
	// mostCounts is how many files of a folder are searched for such numbers.
	mostCounts = 8
	// countBytes bounds the size of one of them.
	countBytes = 16 << 20
)

// counts returns the numbers of samples by shard, as indexes in their folder state: the
// JSON of wids, and .nv-meta/.info.json or .info.yaml of Energon. They are only compared
// with what was read.
func (f *Files) counts(ctx context.Context, shards []shard) (map[int]tarCount, error) {
	if f.bucket() == nil || f.indexes == IndexNone || len(shards) == 0 {
		return nil, nil
	}
	root := strings.TrimSuffix(shards[0].path, shards[0].rel)
	named := map[string][]int{} // shards by the base of their names
	for n, sh := range shards {
		named[path.Base(sh.rel)] = append(named[path.Base(sh.rel)], n)
	}
	files, err := f.glob(globQuoted(root) + "*.json")
	if err != nil {
		return nil, err
	}
	found := map[int]tarCount{}
	for _, name := range append([]string{root + ".nv-meta/.info.json", root + ".nv-meta/.info.yaml"},
		files[:min(len(files), mostCounts)]...) {
		if info, err := f.stat(name); err != nil || !info.Mode().IsRegular() || info.Size() > countBytes {
			continue
		}
		data, err := f.readWhole(ctx, name, countBytes)
		if interrupted(err) {
			return nil, err
		}
		if err != nil {
			continue // a file of another program may be anything
		}
		for tar, samples := range countsIn(data, extension(name) == "yaml") {
			for _, n := range named[path.Base(tar)] {
				if rel := shards[n].rel; rel == tar || strings.HasSuffix(tar, "/"+rel) {
					found[n] = tarCount{name, samples}
				}
			}
		}
	}
	return found, nil
}

// countsIn returns the numbers of samples in a file, by the names or URLs of tars; nil
// for a file of another program.
func countsIn(data []byte, isYAML bool) map[string]int64 {
	type shards []struct {
		URL     string `json:"url"`
		Samples int64  `json:"nsamples"`
	}
	var said struct {
		Shards shards `json:"shardlist"`
		Sets   []struct {
			Shards shards `json:"shardlist"`
		} `json:"datasets"`
		Counts map[string]int64 `json:"shard_counts" yaml:"shard_counts"`
	}
	var err error
	if isYAML {
		err = yaml.Unmarshal(data, &said)
	} else {
		err = json.Unmarshal(data, &said)
	}
	if err != nil { // a file of another program may be anything
		return nil
	}
	counts := said.Counts
	if counts == nil {
		counts = map[string]int64{}
	}
	for _, set := range said.Sets {
		said.Shards = append(said.Shards, set.Shards...)
	}
	for _, sh := range said.Shards {
		counts[sh.URL] = sh.Samples
	}
	return counts
}

// compare notes a difference between the number in an index and the number read. It may
// mean that the upload of the tar is not complete.
func (c tarCount) compare(files *Files, sh shard, samples int64) {
	if c.index != "" && c.samples != samples {
		files.differing.add(fmt.Sprintf("the index %s says that %s has %d samples, and it has %d", Quoted(files.shown(c.index)),
			Quoted(files.shown(sh.path)), c.samples, samples))
	}
}
