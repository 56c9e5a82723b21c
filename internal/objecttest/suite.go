package objecttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// Traits are what a bucket cannot do. The suite then expects an error instead.
type Traits struct {
	// Paths: keys are paths of files. Some keys are rejected, and a key cannot exist
	// together with keys that have it as a folder.
	Paths bool
	// Files: the server stores objects as files, and mishandles keys that cannot be
	// paths.
	Files bool
	// NoUpdates: the server does not support a Put on condition of a version, and such a
	// Put is rejected.
	NoUpdates bool
	// Slow: the server is slow, so that the suite sends fewer requests.
	Slow bool
}

// Run runs the suite on a bucket. Each test opens the bucket by open and closes it. Keys
// begin with a random prefix, so that several runs may share a bucket.
func Run(t *testing.T, open func(t *testing.T) object.Bucket, traits Traits) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(*bench)
	}{
		{"Ranges", ranges},
		{"Whole", whole},
		{"Versions", versions},
		{"Absent", absent},
		{"CreateOnce", createOnce},
		{"Update", update},
		{"Counter", counter},
		{"ABA", aba},
		{"Keys", oddKeys},
		{"List", list},
		{"ListAtRandom", listAtRandom},
		{"ListPages", listPages},
		{"Delete", deletes},
		{"Cancelled", cancelled},
		{"Concurrent", concurrent},
		{"Clock", clock},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A bucket that hangs must not hang all tests.
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			b := open(t)
			defer func() {
				if err := b.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}()
			c.run(&bench{T: t, ctx: ctx, b: b, traits: traits, prefix: fmt.Sprintf("suite-%016x/",
				rand.Uint64())})
		})
	}
}

// bench is one test of the suite. Its methods fail the test.
type bench struct {
	*testing.T

	ctx    context.Context //nolint:containedctx // of one test
	b      object.Bucket
	traits Traits
	prefix string
}

// put stores an object without a condition, and checks the result.
func (b *bench) put(key string, body []byte) schema.ObjectVersion {
	b.Helper()
	i, outcome, err := b.b.Put(b.ctx, key, body, object.Condition{})
	if err != nil || outcome != object.Made {
		b.Fatalf("Put %q: %v, %v", key, outcome, err)
	}
	if i.Version.IsZero() || i.Key != key || i.Size != int64(len(body)) {
		b.Fatalf("Put %q says %+v", key, i)
	}
	return i.Version
}

// fails requires that err wraps want.
func (b *bench) fails(what string, err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("%s: error %v, want %v", what, err, want)
	}
}

// ok requires that there is no error.
func (b *bench) ok(what string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

// body returns n bytes that depend on the arguments alone.
func body(seed string, n int) []byte {
	r := rand.New(rand.NewPCG(uint64(len(seed)), uint64(n)))
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(r.Uint32()) ^ seed[i%len(seed)]
	}
	return out
}

// ranges checks reads of parts, at and beyond the ends of an object.
func ranges(b *bench) {
	data := body("ranges", 70_001)
	key := b.prefix + "ranges"
	v := b.put(key, data)
	for _, r := range [][2]int{{0, 1}, {0, 2}, {1, 1}, {0, 70_001}, {70_000, 1}, {69_999, 2}, {1, 70_000}, {4095, 2},
		{100, 65_536}, {35_000, 0}} {
		// A read with a version and one without take different paths in the client.
		for _, v := range []schema.ObjectVersion{{}, v} {
			// The bytes around the buffer must stay unchanged.
			whole := bytes.Repeat([]byte{0xEE}, r[1]+20)
			b.ok(fmt.Sprintf("Range of %d from %d on", r[1], r[0]), b.b.Range(b.ctx, key, v, int64(r[0]),
				whole[10:10+r[1]:10+r[1]]))
			if !bytes.Equal(whole[10:10+r[1]], data[r[0]:r[0]+r[1]]) {
				b.Fatalf("Range of %d from %d on has other bytes", r[1], r[0])
			}
			if edge := bytes.Repeat([]byte{0xEE}, 10); !bytes.Equal(whole[:10], edge) || !bytes.Equal(whole[10+r[1]:], edge) {
				b.Fatalf("Range of %d from %d on wrote beyond its buffer", r[1], r[0])
			}
		}
	}
	// Ranges beyond the end are errors, and are not cut.
	for _, r := range [][2]int{{70_001, 1}, {70_000, 2}, {0, 70_002}, {1 << 40, 5}, {-1, 1}, {70_002, 0}} {
		b.fails(fmt.Sprintf("Range of %d from %d on", r[1], r[0]), b.b.Range(b.ctx, key, v, int64(r[0]), make([]byte,
			r[1])), schema.ErrInvalid)
	}
	empty := b.prefix + "empty"
	b.put(empty, nil)
	b.ok("Range of nothing in nothing", b.b.Range(b.ctx, empty, schema.ObjectVersion{}, 0, nil))
	b.fails("Range of an empty object", b.b.Range(b.ctx, empty, schema.ObjectVersion{}, 0, make([]byte, 1)),
		schema.ErrInvalid)
}

// whole checks Get and Stat against the content that was put.
func whole(b *bench) {
	for _, n := range []int{0, 1, 1000, 300_000} {
		key, data := fmt.Sprintf("%swhole%d", b.prefix, n), body("whole", n)
		v := b.put(key, data)
		got, i, err := b.b.Get(b.ctx, key, v, int64(n))
		b.ok("Get", err)
		if !bytes.Equal(got, data) || i.Size != int64(n) || i.Key != key || i.Version != v {
			b.Fatalf("Get of %d bytes has %d, %+v, want version %v", n, len(got), i, v)
		}
		// Stat and Get must agree, because callers mix them.
		st, err := b.b.Stat(b.ctx, key)
		b.ok("Stat", err)
		if st.Size != i.Size || st.Version != v || st.Key != key || st.Prefix || st.Modified.IsZero() ||
			!st.Modified.Equal(i.Modified) {
			b.Fatalf("Stat says %+v, Get said %+v", st, i)
		}
		if n > 0 {
			_, _, err = b.b.Get(b.ctx, key, v, int64(n-1))
			b.fails("Get of one byte more than the limit", err, schema.ErrLimit)
		}
	}
}

// versions checks that a read with a version never returns another content: it returns
// the right bytes or a ChangedError.
func versions(b *bench) {
	key := b.prefix + "versions"
	first := b.put(key, []byte("the first"))
	second := b.put(key, []byte("the other"))
	// Equal versions would make a change invisible.
	if first == second {
		b.Fatalf("two contents have the version %v", first)
	}
	buf := make([]byte, 9)
	b.ok("Range", b.b.Range(b.ctx, key, second, 0, buf))
	if string(buf) != "the other" {
		b.Fatalf("Range of the second version has %q", buf)
	}
	// A bucket that keeps versions may still have the first one; no other bytes may come.
	clear(buf)
	if err := b.b.Range(b.ctx, key, first, 0, buf); err == nil && string(buf) != "the first" {
		b.Fatalf("Range of the first version has %q", buf)
	} else if err != nil {
		b.changed("Range", err, key, first)
	}
	if got, _, err := b.b.Get(b.ctx, key, first, 100); err == nil && string(got) != "the first" {
		b.Fatalf("Get of the first version has %q", got)
	} else if err != nil {
		b.changed("Get", err, key, first)
	}
	b.ok("Delete", b.b.Delete(b.ctx, key))
	if err := b.b.Range(b.ctx, key, second, 0, buf); err != nil {
		b.changed("Range of a deleted object", err, key, second)
	}
}

// changed requires a ChangedError with all fields.
func (b *bench) changed(what string, err error, key string, want schema.ObjectVersion) {
	b.Helper()
	var c *object.ChangedError
	if !errors.As(err, &c) || !errors.Is(err, schema.ErrDataLoss) {
		b.Fatalf("%s: error %v, want a ChangedError", what, err)
	}
	if c.Key != key || c.Bucket != b.b.URL() || c.Want != want || !strings.Contains(err.Error(), key) {
		b.Fatalf("%s: the error is %#v", what, c)
	}
}

// absent checks the errors for an object that does not exist.
func absent(b *bench) {
	key := b.prefix + "absent"
	_, err := b.b.Stat(b.ctx, key)
	b.fails("Stat", err, schema.ErrNotFound)
	_, _, err = b.b.Get(b.ctx, key, schema.ObjectVersion{}, 10)
	b.fails("Get", err, schema.ErrNotFound)
	err = b.b.Range(b.ctx, key, schema.ObjectVersion{}, 0, make([]byte, 1))
	b.fails("Range", err, schema.ErrNotFound)
	if !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), b.b.URL()) {
		b.Fatalf("the error names no object or no bucket: %v", err)
	}
	_, err = b.b.Stat(b.ctx, "")
	b.fails("Stat of no key", err, schema.ErrInvalid)
}

// createOnce makes many clients create one object. Exactly one succeeds, and its bytes
// are stored.
func createOnce(b *bench) {
	// Several rounds: a race may come out right by chance.
	const writers = 16
	rounds := 5
	if b.traits.Slow {
		rounds = 2
	}
	for round := range rounds {
		key := fmt.Sprintf("%sonce%d", b.prefix, round)
		var mu sync.Mutex
		var made []string
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				text := fmt.Sprintf("writer %d", w)
				i, outcome, err := b.b.Put(b.ctx, key, []byte(text), object.Condition{Absent: true})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case outcome == object.Made && err == nil && !i.Version.IsZero():
					made = append(made, text)
				case outcome == object.Moved && errors.Is(err, schema.ErrConflict):
				// Some servers answer so if two requests arrive at once.
				case outcome == object.Uncertain && err != nil:
				default:
					b.Errorf("Put: %v, %v", outcome, err)
				}
			})
		}
		wg.Wait()
		got, _, err := b.b.Get(b.ctx, key, schema.ObjectVersion{}, 100)
		b.ok("Get", err)
		if len(made) != 1 || string(got) != made[0] {
			b.Fatalf("%d writers made the object: %q; it has %q", len(made), made, got)
		}
	}
}

// update checks each condition of a Put: on a version, on absence, and on both.
func update(b *bench) {
	key := b.prefix + "update"
	if b.traits.NoUpdates {
		v := b.put(key, []byte("x"))
		_, outcome, err := b.b.Put(b.ctx, key, []byte("y"), object.Condition{Version: v})
		if outcome != object.Failed || !errors.Is(err, schema.ErrNotSupported) {
			b.Fatalf("Put on a version: %v, %v", outcome, err)
		}
		return
	}
	one := b.put(key, []byte("one"))
	expect := func(what string, c object.Condition, want object.Outcome) schema.ObjectVersion {
		b.Helper()
		i, outcome, err := b.b.Put(b.ctx, key, []byte(what), c)
		if outcome != want || (err == nil) != (want == object.Made) {
			b.Fatalf("Put %s: %v, %v, want %v", what, outcome, err, want)
		}
		return i.Version
	}
	// Each line is a state of the object and a condition on it.
	two := expect("two", object.Condition{Version: one}, object.Made)
	expect("stale", object.Condition{Version: one}, object.Moved)
	expect("there is one", object.Condition{Absent: true}, object.Moved)
	expect("both", object.Condition{Absent: true, Version: two}, object.Failed)
	expect("three", object.Condition{}, object.Made)
	expect("stale again", object.Condition{Version: two}, object.Moved)
	got, i, err := b.b.Get(b.ctx, key, schema.ObjectVersion{}, 100)
	b.ok("Get", err)
	if string(got) != "three" {
		b.Fatalf("it has %q", got)
	}
	b.ok("Delete", b.b.Delete(b.ctx, key))
	expect("deleted", object.Condition{Version: i.Version}, object.Moved)
	if _, err := b.b.Stat(b.ctx, key); !errors.Is(err, schema.ErrNotFound) {
		b.Fatalf("a Put for the version of a deleted object made one: %v", err)
	}
	expect("anew", object.Condition{Absent: true}, object.Made)
}

// counter makes many clients count by compare and swap. No increment may be lost: stores
// commit by it.
func counter(b *bench) {
	if b.traits.NoUpdates {
		return
	}
	writers, each := 16, 5
	if b.traits.Slow {
		writers, each = 8, 3
	}
	key := b.prefix + "counter"
	b.put(key, []byte("0"))
	var made atomic.Int64
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := 0; i < each && b.ctx.Err() == nil; {
				text, info, err := b.b.Get(b.ctx, key, schema.ObjectVersion{}, 1000)
				if err != nil {
					b.Errorf("Get: %v", err)
					return
				}
				// The content begins with the count.
				number, _, _ := strings.Cut(string(text), " ")
				n, err := strconv.Atoi(number)
				if err != nil {
					b.Errorf("the counter has %q", text)
					return
				}
				// The number of the writer makes contents of equal counts different, so
				// that their ETags differ.
				_, outcome, err := b.b.Put(b.ctx, key, fmt.Appendf(nil, "%d by %d, %d", n+1, w, i),
					object.Condition{Version: info.Version})
				switch outcome {
				case object.Made:
					made.Add(1)
					i++
				case object.Moved:
				case object.Uncertain, object.Failed:
					b.Errorf("Put: %v, %v", outcome, err)
					return
				}
			}
		})
	}
	wg.Wait()
	text, _, err := b.b.Get(b.ctx, key, schema.ObjectVersion{}, 1000)
	b.ok("Get", err)
	if number, _, _ := strings.Cut(string(text), " "); number != strconv.Itoa(writers*each) ||
		made.Load() != int64(writers*each) {
		b.Fatalf("after %d of %d increments the counter is %s", made.Load(), writers*each, number)
	}
}

// aba replaces contents of one length as fast as possible. No version may occur twice, or
// a reader could take another content for its own.
func aba(b *bench) {
	rounds := 40
	if b.traits.Slow {
		rounds = 10
	}
	key := b.prefix + "aba"
	seen := map[schema.ObjectVersion]string{}
	for n := range rounds {
		text := fmt.Sprintf("%04d", n)
		v := b.put(key, []byte(text))
		if other, ok := seen[v]; ok {
			b.Fatalf("%s and %s have the version %v", text, other, v)
		}
		seen[v] = text
	}
}

// oddKeys checks keys that need escaping in URLs, in XML, or in paths.
func oddKeys(b *bench) {
	keys := []string{"a+b", "a b", "a%20b", "100%", "ä/ö-日本語", "x=y&z", "q?r", "h#i", "semi;colon", "at@colon:comma,",
		"~tilde", "(paren)!*'",
		"under_score-dot.", "$dollar", `"quoted"`, "<tag>&amp;", "[brackets]{}|^`", "deep/er/and/er", "😀"}
	// These keys are valid in the clouds, but some servers reject them.
	more := []string{`back\slash`, "a//b", "/slash", "slash/", "deep/er", "tab\there", "./dot", "dot/../dot"}
	if b.traits.Paths {
		for _, key := range []string{"a//b", "/slash", "slash/", "a/./b", "../up", "a/../b", ".", "..", "nul\x00",
			strings.Repeat("x", 256)} {
			_, outcome, err := b.b.Put(b.ctx, key, []byte("x"), object.Condition{})
			if outcome != object.Failed || !errors.Is(err, schema.ErrInvalid) {
				b.Fatalf("Put %q: %v, %v", key, outcome, err)
			}
		}
		b.put(b.prefix+"file", nil)
		_, outcome, err := b.b.Put(b.ctx, b.prefix+"file/below", nil, object.Condition{})
		if outcome != object.Failed || !errors.Is(err, schema.ErrInvalid) {
			b.Fatalf("Put below an object: %v, %v", outcome, err)
		}
		b.ok("Delete", b.b.Delete(b.ctx, b.prefix+"file"))
	} else if !b.traits.Files {
		keys = append(keys, more...)
	}
	var want []string
	for i, key := range keys {
		key = b.prefix + key
		_, outcome, err := b.b.Put(b.ctx, key, []byte(key), object.Condition{Absent: true})
		if outcome != object.Made {
			if slices.Contains(more, keys[i]) && outcome == object.Failed {
				b.Logf("the server does not take the key %q: %v", key, err) // no cloud rejects it
				continue
			}
			b.Fatalf("Put %q: %v, %v", key, outcome, err)
		}
		want = append(want, key)
	}
	// Lists are in the order of UTF-8 bytes, as Go sorts strings.
	slices.Sort(want)
	for _, key := range want {
		got, _, err := b.b.Get(b.ctx, key, schema.ObjectVersion{}, 1000)
		b.ok(fmt.Sprintf("Get %q", key), err)
		if string(got) != key {
			b.Fatalf("under %q there is %q", key, got)
		}
	}
	got := b.list(object.ListOptions{Prefix: b.prefix})
	if !slices.Equal(got, want) {
		b.Fatalf("List has\n%q, want\n%q", got, want)
	}
	for _, key := range want {
		if got := b.list(object.ListOptions{Prefix: key}); len(got) == 0 || got[0] != key {
			b.Fatalf("List of %q has %q", key, got)
		}
		b.ok("Delete", b.b.Delete(b.ctx, key))
	}
	if got := b.list(object.ListOptions{Prefix: b.prefix}); len(got) > 0 {
		b.Fatalf("after all were deleted there is %q", got)
	}
}

// list returns the keys that a bucket lists. Prefixes have a bar in front.
func (b *bench) list(opts object.ListOptions) []string {
	b.Helper()
	var got []string
	for i, err := range b.b.List(b.ctx, opts) {
		b.ok(fmt.Sprintf("List %+v", opts), err)
		if i.Prefix {
			got = append(got, "|"+i.Key)
			continue
		}
		if i.Version.IsZero() || i.Modified.IsZero() {
			b.Fatalf("List has %+v", i)
		}
		got = append(got, i.Key)
	}
	return got
}

// list checks the order, prefixes, delimiters and the start of lists.
func list(b *bench) {
	p := b.prefix
	versions := map[string]object.Info{}
	for i, key := range []string{"a", "b/1", "b/2", "b-1", "b.1", "c/d/1", "c/d/2", "c/e", "z"} {
		key = p + key
		v := b.put(key, body("list", i+1))
		versions[key] = object.Info{Key: key, Version: v, Size: int64(i + 1)}
	}
	for i, err := range b.b.List(b.ctx, object.ListOptions{Prefix: p}) {
		b.ok("List", err)
		want := versions[i.Key]
		// A list of some servers has no version ids.
		if i.Size != want.Size || i.Version.ETag != want.Version.ETag || i.Version.ID != "" &&
			i.Version.ID != want.Version.ID {
			b.Fatalf("List has %+v, Put made %+v", i, want)
		}
		// A version from a list must be good for a read.
		buf := make([]byte, i.Size)
		b.ok("Range of a listed version", b.b.Range(b.ctx, i.Key, i.Version, 0, buf))
	}
	for _, c := range []struct {
		opts object.ListOptions
		want string
	}{
		{object.ListOptions{}, "a b-1 b.1 b/1 b/2 c/d/1 c/d/2 c/e z"},
		{object.ListOptions{Prefix: "b"}, "b-1 b.1 b/1 b/2"},
		{object.ListOptions{Prefix: "b/"}, "b/1 b/2"},
		{object.ListOptions{Prefix: "nothing"}, ""},
		{object.ListOptions{Delimiter: "/"}, "a b-1 b.1 |b/ |c/ z"},
		{object.ListOptions{Prefix: "c/", Delimiter: "/"}, "|c/d/ c/e"},
		{object.ListOptions{Prefix: "c", Delimiter: "/"}, "|c/"},
		{object.ListOptions{After: "b"}, "b-1 b.1 b/1 b/2 c/d/1 c/d/2 c/e z"},
		{object.ListOptions{After: "b/1"}, "b/2 c/d/1 c/d/2 c/e z"},
		{object.ListOptions{After: "b/1x"}, "b/2 c/d/1 c/d/2 c/e z"},
		{object.ListOptions{After: "z"}, ""},
		{object.ListOptions{After: "b/", Delimiter: "/"}, "|c/ z"},
		{object.ListOptions{After: "b/1", Delimiter: "/"}, "|c/ z"},
		{object.ListOptions{After: "b.1", Delimiter: "/"}, "|b/ |c/ z"},
		{object.ListOptions{Prefix: "c/", After: "c/d/1"}, "c/d/2 c/e"},
		{object.ListOptions{Prefix: "c/", After: "a"}, "c/d/1 c/d/2 c/e"},
		{object.ListOptions{Prefix: "b", After: "c"}, ""},
	} {
		// The table has keys without the test's prefix.
		c.opts.Prefix = p + c.opts.Prefix
		if c.opts.After != "" {
			c.opts.After = p + c.opts.After
		}
		var want []string
		for _, k := range strings.Fields(c.want) {
			if rest, ok := strings.CutPrefix(k, "|"); ok {
				want = append(want, "|"+p+rest)
			} else {
				want = append(want, p+k)
			}
		}
		if got := b.list(c.opts); !slices.Equal(got, want) {
			b.Fatalf("List %+v has\n%q, want\n%q", c.opts, got, want)
		}
	}
	// The caller may stop an iteration early.
	for _, err := range b.b.List(b.ctx, object.ListOptions{Prefix: p}) {
		b.ok("List", err)
		break
	}
}

// listAtRandom compares lists of random keys with a model. The seed is printed.
func listAtRandom(b *bench) {
	seed := rand.Uint64()
	b.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	n := 60
	if b.traits.Slow {
		n = 25
	}
	word := func() string { return []string{"a", "b", "-", ".", "0", "ab", "ä", "Z"}[r.IntN(8)] }
	keys := map[string]bool{}
	for range n {
		key := b.prefix + word()
		for r.IntN(3) > 0 {
			key += "/" + word()
		}
		// A key below another key cannot exist in a directory.
		clash := false
		for k := range keys {
			clash = clash || k == key || strings.HasPrefix(k, key+"/") || strings.HasPrefix(key, k+"/")
		}
		// Names of one dot are no files.
		last := key[strings.LastIndexByte(key, '/')+1:]
		if clash || b.traits.Paths && last == "." || strings.Contains(key, "/./") || last == "." {
			continue
		}
		keys[key] = true
		b.put(key, []byte("x"))
	}
	for range 40 {
		opts := object.ListOptions{Prefix: b.prefix}
		if r.IntN(2) == 0 {
			opts.Delimiter = "/"
		}
		if r.IntN(2) == 0 {
			opts.Prefix += word()
		}
		if r.IntN(2) == 0 {
			opts.After = b.prefix + word() + "/" + word()
		}
		// The seed is in the error, so that a failure can be repeated.
		want := model(keys, opts)
		if got := b.list(opts); !slices.Equal(got, want) {
			b.Fatalf("seed %d: List %+v has\n%q, want\n%q", seed, opts, got, want)
		}
	}
}

// model returns the right list: it groups and sorts all keys, which is slow and simple.
func model(keys map[string]bool, opts object.ListOptions) []string {
	seen := map[string]bool{}
	for k := range keys {
		rest, ok := strings.CutPrefix(k, opts.Prefix)
		if !ok || k <= opts.After {
			continue
		}
		if i := strings.Index(rest, opts.Delimiter); opts.Delimiter != "" && i >= 0 {
			if p := k[:len(opts.Prefix)+i+1]; p > opts.After {
				seen["|"+p] = true
			}
			continue
		}
		seen[k] = true
	}
	var out []string
	for k := range seen {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b string) int {
		return strings.Compare(strings.TrimPrefix(a, "|"), strings.TrimPrefix(b,
			"|"))
	})
	return out
}

// listPages lists more keys than a page of any server has.
func listPages(b *bench) {
	n := 1100
	if b.traits.Slow || testing.Short() {
		n = 120
	}
	var wg sync.WaitGroup
	// 16 puts at once are faster, and no load for a server.
	turn := make(chan struct{}, 16)
	for i := range n {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			if _, _, err := b.b.Put(b.ctx, fmt.Sprintf("%s%05d", b.prefix, i), []byte("x"), object.Condition{}); err != nil {
				b.Errorf("Put: %v", err)
			}
		})
	}
	wg.Wait()
	got := b.list(object.ListOptions{Prefix: b.prefix})
	if len(got) != n {
		b.Fatalf("%d of %d are listed", len(got), n)
	}
	for i, k := range got {
		if k != fmt.Sprintf("%s%05d", b.prefix, i) {
			b.Fatalf("number %d is %q", i, k)
		}
	}
	if got := b.list(object.ListOptions{Prefix: b.prefix, After: got[n/2]}); len(got) != n-n/2-1 {
		b.Fatalf("after the one in the middle %d are listed", len(got))
	}
}

// deletes checks that a delete of nothing is no error, and that empty folders are not
// listed.
func deletes(b *bench) {
	key := b.prefix + "deep/delete"
	b.ok("Delete of nothing", b.b.Delete(b.ctx, key))
	b.put(key, []byte("x"))
	b.ok("Delete", b.b.Delete(b.ctx, key))
	b.ok("Delete again", b.b.Delete(b.ctx, key))
	_, err := b.b.Stat(b.ctx, key)
	b.fails("Stat of what was deleted", err, schema.ErrNotFound)
	if got := b.list(object.ListOptions{Prefix: b.prefix}); len(got) > 0 {
		b.Fatalf("List has %q", got)
	}
	if got := b.list(object.ListOptions{Prefix: b.prefix, Delimiter: "/"}); len(got) > 0 {
		b.Fatalf("List has %q", got)
	}
}

// cancelled checks each method with a context that has ended: it returns the context's
// error and does nothing.
func cancelled(b *bench) {
	key := b.prefix + "cancelled"
	v := b.put(key, []byte("here"))
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	b.fails("Range", b.b.Range(ctx, key, v, 0, make([]byte, 1)), context.Canceled)
	_, _, err := b.b.Get(ctx, key, v, 10)
	b.fails("Get", err, context.Canceled)
	_, err = b.b.Stat(ctx, key)
	b.fails("Stat", err, context.Canceled)
	_, outcome, err := b.b.Put(ctx, key, []byte("gone"), object.Condition{})
	b.fails("Put", err, context.Canceled)
	if outcome != object.Failed {
		b.Fatalf("a Put that was not begun is %v", outcome)
	}
	b.fails("Delete", b.b.Delete(ctx, key), context.Canceled)
	// A list that fails must yield one error and stop.
	n := 0
	for _, err := range b.b.List(ctx, object.ListOptions{Prefix: b.prefix}) {
		b.fails("List", err, context.Canceled)
		n++
	}
	if n != 1 {
		b.Fatalf("List gave %d errors", n)
	}
	got, _, err := b.b.Get(b.ctx, key, v, 10)
	b.ok("Get afterwards", err)
	if string(got) != "here" {
		b.Fatalf("a call that was not begun changed the object: %q", got)
	}
}

// concurrent reads and writes at once. Each read has the bytes of its version, or an
// error.
func concurrent(b *bench) {
	readers, each := 24, 12
	if b.traits.Slow {
		readers, each = 8, 4
	}
	key := b.prefix + "concurrent"
	content := func(n int) []byte { return bytes.Repeat([]byte{byte(n)}, 20_000) }
	var mu sync.Mutex
	// The index is the content of the version.
	versions := []schema.ObjectVersion{b.put(key, content(0))}
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; n < 6; n++ {
			i, outcome, err := b.b.Put(b.ctx, key, content(n), object.Condition{})
			if outcome != object.Made {
				b.Errorf("Put: %v, %v", outcome, err)
				return
			}
			mu.Lock()
			versions = append(versions, i.Version)
			mu.Unlock()
		}
	})
	for range readers {
		wg.Go(func() {
			buf := make([]byte, 5000)
			for range each {
				mu.Lock()
				n := rand.IntN(len(versions))
				v := versions[n]
				mu.Unlock()
				err := b.b.Range(b.ctx, key, v, 7000, buf)
				if err == nil && !bytes.Equal(buf, content(n)[:5000]) {
					b.Errorf("version %d has bytes of %d", n, buf[0])
				}
				if err != nil && !errors.Is(err, schema.ErrDataLoss) {
					b.Errorf("Range: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

// clock checks that answers have the server's time.
func clock(b *bench) {
	key := b.prefix + "clock"
	b.put(key, []byte("x"))
	i, err := b.b.Stat(b.ctx, key)
	b.ok("Stat", err)
	if i.Date.IsZero() || i.Date.Sub(i.Modified).Abs() > time.Minute {
		b.Fatalf("the server's clock is %v, and the object of %v", i.Date, i.Modified)
	}
	for i, err := range b.b.List(b.ctx, object.ListOptions{Prefix: b.prefix}) {
		b.ok("List", err)
		if i.Date.IsZero() {
			b.Fatal("List does not say what time it is at the server")
		}
	}
}
