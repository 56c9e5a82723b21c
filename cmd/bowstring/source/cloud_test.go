package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// s3 is a server with a bucket b, and its address.
type s3 struct {
	*objecttest.Server
	opts Options
}

func startS3(t *testing.T) *s3 {
	t.Helper()
	server, err := objecttest.Start(objecttest.Config{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := &s3{Server: server}
	s.MakeBucket("b")
	s.opts.Bucket = func(ctx context.Context, url string) (object.Bucket, error) {
		b, err := object.Open(ctx, url, object.Options{})
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
		}
		return b, err
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// url returns the URL of a key.
func (s *s3) url(key string) string {
	return "s3://b/" + key + "?endpoint=" + s.Endpoint() + "&region=eu-central-1&anonymous=true"
}

// put uploads the files of a folder below a prefix.
func (s *s3) put(t *testing.T, root, prefix string) (files int, size int64) {
	t.Helper()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		s.PutObject("b", prefix+filepath.ToSlash(rel), content)
		files++
		size += int64(len(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, size
}

// dataSets are folders of several formats.
func dataSets(t *testing.T) map[string]string {
	t.Helper()
	images, table := map[string]string{}, "path,label\n"
	for i := range 30 {
		name := fmt.Sprintf("%c/%d.jpg", 'a'+i%3, i)
		images[name] = jpg(t, i+1)
		table += fmt.Sprintf("%s,%d\n", name, i%3)
	}
	tars := map[string]string{}
	for n := range 4 {
		var members []entry
		for i := range 10 {
			key := fmt.Sprintf("%d-%d", n, i)
			members = append(members, entry{key + ".jpg", jpg(t, n*10+i)}, entry{key + ".cls", fmt.Sprint(i)},
				entry{key + ".json", fmt.Sprintf(`{"n": %d, "s": "x"}`, i)})
		}
		tars[fmt.Sprintf("train-%d.tar", n)] = makeTar(t, members...)
	}
	tars["train-4.tar.gz"] = gzipped(t, makeTar(t, entry{"z.jpg", jpg(t, 99)}, entry{"z.cls", "1"}))
	parquet := t.TempDir()
	fields := []arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "b", Type: arrow.BinaryTypes.Binary}}
	for i := range 3 {
		writeParquet(t, filepath.Join(parquet, fmt.Sprintf("%d.parquet", i)), "", fields, `[1, 2, 3]`,
			`["AAAA", null, "AAECAw=="]`)
	}
	withTable := tree(t, images)
	if err := os.WriteFile(filepath.Join(withTable, "t.csv"), []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"imagefolder": tree(t, images), "list": withTable, "webdataset": tree(t, tars),
		"parquet": parquet, "mds": "testdata/mds/plain", "huggingface": "testdata/huggingface"}
}

// pathOf returns the path that opens a data set.
func pathOf(name, root string) string {
	if name == "list" {
		return root + "/t.csv"
	}
	return root
}

// The files of an S3 server are read like those of a folder: with a latency of 20 ms,
// with requests that are rejected, cut short and lost, and with no more requests than the
// files need.
func TestReadFromS3(t *testing.T) {
	for name, root := range dataSets(t) {
		t.Run(name, func(t *testing.T) {
			s := startS3(t)
			files, size := s.put(t, root, name+"/")
			s.PutObject("b", name+"2/other.jpg", []byte("no part of it"))
			s.PutObject("b", name, []byte{}) // an object with the name of a folder
			s.DeleteObject("b", name)
			want := readOnce(t, pathOf(name, root), Options{}, ReadOptions{})
			s.Fail(objecttest.Fault{Delay: func(*rand.Rand) time.Duration { return 20 * time.Millisecond }})
			var estimate Estimate
			opts := s.opts
			opts.Begin = func(e Estimate) error { estimate = e; return nil }
			begun := time.Now()
			got := readOnce(t, s.url(pathOf(name, name)), opts, ReadOptions{})
			counts := s.Counts()
			t.Logf("%d files, %d bytes: %v in %v, estimated %+v", files, size, counts.Requests, time.Since(begun), estimate)
			if got.rowsText() != want.rowsText() {
				t.Errorf("from S3\n%s\nfrom a folder\n%s", got.rowsText(), want.rowsText())
			}
			// Each blob with an extent is one more read by the checks of this test.
			gets, most := counts.Requests[objecttest.Get]-int64(got.placed), int64(2*files+3)
			if name == "webdataset" {
				most = int64(3*files + 20) // headers are sampled first
			}
			if gets > most {
				t.Errorf("%d reads of %d files, want at most %d", gets, files, most)
			}
			if n := counts.Requests[objecttest.List]; n > 10 {
				t.Errorf("%d requests to list %d files", n, files)
			}
			if name != "mds" && (estimate.Files == 0 || estimate.Through.Requests < 1 ||
				estimate.Through.Requests > 2*counts.Requests[objecttest.Get]) {
				t.Errorf("estimated %+v, and made %d reads", estimate, gets)
			}
			s.Heal()
			s.Fail(objecttest.Fault{Status: 503, Code: "SlowDown", Share: 0.1})
			s.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Short: true, Share: 0.1})
			s.Fail(objecttest.Fault{Lose: true, Share: 0.1})
			if got := readOnce(t, s.url(pathOf(name, name)), s.opts, ReadOptions{}); got.rowsText() != want.rowsText() {
				t.Errorf("with faults\n%s\nfrom a folder\n%s", got.rowsText(), want.rowsText())
			}
		})
	}
}

// rowsText returns the rows without the parts that depend on the place.
func (r *readResult) rowsText() string {
	r.notes = nil
	return r.text()
}

// Walking requests only headers: nothing of folders, and little of tars with large
// members.
func TestWalkReadsLittle(t *testing.T) {
	s := startS3(t)
	large := strings.Repeat("x", 1<<20)
	root := tree(t, map[string]string{"train-0.tar": makeTar(t, entry{"a.bin", large}, entry{"a.cls", "1"},
		entry{"b.bin", large}, entry{"b.cls", "2"}), "train-1.tar": makeTar(t, entry{"c.bin", large}, entry{"c.cls", "3"})})
	_, size := s.put(t, root, "tars/")
	s.put(t, tree(t, map[string]string{"a/1.jpg": jpg(t, 1), "b/2.jpg": jpg(t, 2)}), "images/")
	for _, name := range []string{"tars", "images"} {
		opts := s.opts
		opts.Walk = true
		before := s.Counts()
		src, err := Open(t.Context(), s.url(name), opts)
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewReader(src, ReadOptions{Dataset: "d", Split: "train"})
		if err != nil {
			t.Fatal(err)
		}
		rows := 0
		for b, err := range r.Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			rows += len(b.Keys)
			for c := range b.Blobs {
				for row, blob := range b.Blobs[c] {
					if blob != nil || b.At[c][row].IsZero() {
						t.Errorf("%s: %d bytes were read, and its extent is %+v", b.Keys[row], len(blob), b.At[c][row])
					}
				}
			}
			if len(b.Bad) > 0 {
				t.Error(b.Bad)
			}
		}
		after := s.Counts()
		gets := after.Requests[objecttest.Get] - before.Requests[objecttest.Get]
		t.Logf("%s: %d rows, %d reads, %d bytes; estimated %+v", name, rows, gets, after.Sent-before.Sent, src.Estimate())
		switch {
		case name == "tars" && (rows != 3 || after.Sent-before.Sent > size/20):
			t.Errorf("%d rows by %d bytes of %d", rows, after.Sent-before.Sent, size)
		case name == "images" && (rows != 2 || gets != 0):
			t.Errorf("%d rows by %d reads", rows, gets)
		}
		if name == "tars" && (src.Estimate().Walked.Requests > 4*gets || src.Estimate().Walked.Bytes > size/10) {
			t.Errorf("%d reads were estimated as %+v", gets, src.Estimate())
		}
	}
}

// An object that changes after it was listed is a bad sample with its name, and others
// are read.
func TestObjectThatChanges(t *testing.T) {
	s := startS3(t)
	s.put(t, tree(t, map[string]string{"a/1.jpg": jpg(t, 1), "a/2.jpg": jpg(t, 2), "b/3.jpg": jpg(t, 3)}), "x/")
	s.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Prefix: "x/a/2.jpg", Change: true})
	r := readOnce(t, s.url("x/"), s.opts, ReadOptions{})
	if len(r.keys) != 2 || len(r.bad) != 1 || r.bad[0].Key != "a/2.jpg" ||
		!strings.Contains(r.bad[0].Reason, "is not the one with") {
		t.Errorf("rows %q, bad %v", r.keys, r.bad)
	}
}

// If the bucket becomes unreachable, the import fails, and no sample is bad.
func TestBucketThatIsDenied(t *testing.T) {
	for name, root := range dataSets(t) {
		s := startS3(t)
		s.put(t, root, name+"/")
		src, err := Open(t.Context(), s.url(pathOf(name, name)), s.opts)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Status: 403, Code: "AccessDenied"})
		r, err := NewReader(src, ReadOptions{Dataset: "d", Split: "train"})
		if err != nil {
			t.Fatal(err)
		}
		var failed error
		bad := 0
		for b, err := range r.Batches(t.Context()) {
			if failed = err; b != nil {
				bad += len(b.Bad)
			}
		}
		kept := name == "mds" || name == "webdataset" // data of the first pass is kept
		if kept && failed != nil || !kept && !errors.Is(failed, schema.ErrDenied) || bad > 0 {
			t.Errorf("%s: %v, and %d bad samples", name, failed, bad)
		}
		if _, err := Open(t.Context(), s.url(pathOf(name, name)), s.opts); name != "imagefolder" &&
			!errors.Is(err, schema.ErrDenied) {
			t.Errorf("%s: opened: %v", name, err)
		}
	}
	s := startS3(t)
	s.put(t, tree(t, map[string]string{"a/1.jpg": jpg(t, 1)}), "x/")
	s.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.List}, Status: 403, Code: "AccessDenied"})
	if _, err := Open(t.Context(), s.url("x/"), s.opts); !errors.Is(err, schema.ErrDenied) {
		t.Errorf("a list that is denied: %v", err)
	}
}

// A URL names an object, a folder with or without a slash, a pattern, or nothing.
func TestPlacesInBuckets(t *testing.T) {
	s := startS3(t)
	picture := jpg(t, 1)
	s.put(t, tree(t, map[string]string{"imgs/a/1.jpg": picture, "imgs.txt": "?", "imgs2/b/1.jpg": picture,
		"tars/t-0.tar": makeTar(t, entry{"a.jpg", picture}), "tars/t-1.tar": makeTar(t, entry{"b.jpg", picture}),
		"lists/t.csv": "path\nimgs/1.jpg\ns3://b/lists/imgs/2.jpg\ns3://b/imgs/a/1.jpg\ns3://other/x.jpg\n../imgs/a/1.jpg\n" +
			"/etc/passwd\n../../../b/imgs/a/1.jpg\n", "lists/imgs/1.jpg": picture, "lists/imgs/2.jpg": picture}), "")
	s.PutObject("b", "imgs/", nil)          // a marker of a folder
	s.PutObject("b", "imgs/a//2.jpg", nil)  // no path
	s.PutObject("b", "imgs/a/1.jpg/x", nil) // below an object that is also a folder
	s.PutObject("b", "imgs/.hidden/1.jpg", nil)
	for _, c := range []struct {
		key  string
		opts Options
		keys []string
		bad  int
	}{
		{"imgs/", Options{}, []string{"a/1.jpg"}, 0},
		{"imgs", Options{}, []string{"a/1.jpg"}, 0},
		{"tars/t-1.tar", Options{}, []string{"b"}, 0},
		{"tars/t-{0..1}.tar", Options{}, []string{"a", "b"}, 0},
		{"tars/*.tar", Options{}, []string{"a", "b"}, 0},
		{"lists/t.csv", Options{}, []string{"imgs/1.jpg", "imgs/2.jpg"}, 5},
		{"lists/t.csv", Options{Outside: true}, []string{"imgs/1.jpg", "imgs/2.jpg", "../imgs/a/1.jpg"}, 4},
	} {
		opts := c.opts
		opts.Bucket = s.opts.Bucket
		r := readOnce(t, s.url(c.key), opts, ReadOptions{})
		if !slices.Equal(r.keys, c.keys) || len(r.bad) != c.bad {
			t.Errorf("%s: %q, bad %v; want %q", c.key, r.keys, r.bad, c.keys)
		}
		for _, bad := range r.bad {
			if strings.Contains(bad.Reason, cloudRoot+"/") {
				t.Errorf("%s: %s does not say where", c.key, bad.Reason)
			}
		}
	}
	for key, want := range map[string]error{"none": schema.ErrNotFound, "none/": schema.ErrNotFound,
		"a/../b": schema.ErrInvalid, "lists/x{1..2}.tar": schema.ErrNotFound} {
		if _, err := Open(t.Context(), s.url(key), s.opts); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", key, err, want)
		}
	}
	// If the first keys of a folder do not show its format, its subfolders are sampled.
	for i := range 2500 {
		s.PutObject("b", fmt.Sprintf("many/a/%04d.txt", i), nil)
		s.PutObject("b", fmt.Sprintf("many/b/%04d.txt", i), nil)
	}
	s.PutObject("b", "many/c/1.jpg", []byte(picture))
	before := s.Counts()
	src, err := Open(t.Context(), s.url("many/"), s.opts)
	if err != nil || src.Rows() != 1 || src.Format() != "imagefolder" {
		t.Fatalf("%v: %v", err, src)
	}
	if n := s.Counts().Requests[objecttest.List] - before.Requests[objecttest.List]; n > 4+1+3+6 {
		t.Errorf("%d requests for lists", n)
	}
}

// A keyList has the keys that were added, and lists folders as a file system does.
func TestKeyList(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{"a", "b", "é", "0", "/", "-", "/", ".", "x.jpg", "\xff", " "}
	for range 100 {
		objects := map[string]object.Info{}
		for range rng.IntN(300) {
			key := ""
			for range 1 + rng.IntN(8) {
				key += pieces[rng.IntN(len(pieces))]
			}
			o := object.Info{Key: key, Size: rng.Int64() >> rng.IntN(63)}
			switch rng.IntN(4) {
			case 0:
				o.Version.ETag = fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64())
			case 1:
				o.Version.ETag = strings.ToUpper(fmt.Sprintf("%x-%d", rng.Uint64(), rng.IntN(9)))
			}
			if rng.IntN(3) == 0 {
				o.Version.ID = fmt.Sprint(rng.Uint64())
			}
			if rng.IntN(3) == 0 {
				o.Class = "GLACIER"
			}
			objects[key] = o
		}
		var l keyList
		var keys []string
		for key := range objects {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			if err := l.add(objects[key]); err != nil {
				t.Fatal(err)
			}
		}
		l.seal()
		for range 20 {
			from := ""
			if len(keys) > 0 {
				from = keys[rng.IntN(len(keys))]
			}
			from = from[:rng.IntN(len(from)+1)] + pieces[rng.IntN(len(pieces))]
			i, found := slices.BinarySearch(keys, from)
			if o, ok := l.find(from); ok != found || ok && o != objects[from] {
				t.Fatalf("%q: %+v, %t", from, o, ok)
			}
			for o := range l.from(from) {
				if o != objects[keys[i]] {
					t.Fatalf("from %q: %+v, want %+v", from, o, objects[keys[i]])
				}
				i++
			}
			if i != len(keys) {
				t.Fatalf("from %q: it ends before %q", from, keys[i])
			}
		}
		if len(keys) > 0 && l.add(object.Info{Key: keys[len(keys)-1]}) == nil {
			t.Error("a key was added twice")
		}
	}
}
