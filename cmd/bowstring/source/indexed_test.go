package source

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bowstring/internal/objecttest"
)

// indexOf is the index of a tar.
func indexOf(t *testing.T, content string, kind TarIndex) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.tar")
	writeFile(t, path, []byte(content))
	index, err := tarIndex(t, path, kind)
	if err != nil {
		t.Fatal(err)
	}
	return string(index)
}

// alterIndex changes an index, by mistake or by malice.
func alterIndex(rng *rand.Rand, kind TarIndex, index, another string, size int, large bool) string {
	if kind == EnergonIndex {
		data := []byte(index)
		at := rng.IntN(len(data)/8) * 8
		switch rng.IntN(7) {
		case 0: // all are shifted
			for i := 0; i < len(data); i += 8 {
				binary.LittleEndian.PutUint64(data[i:], binary.LittleEndian.Uint64(data[i:])+512)
			}
		case 1:
			data = data[:at]
		case 2:
			return another
		case 3: // one is
			binary.LittleEndian.PutUint64(data[at:], uint64(rng.IntN(size/512+1)*512))
		case 4:
			binary.LittleEndian.PutUint64(data[at:], rng.Uint64())
		case 5: // all blocks are said to be headers
			data = nil
			for i := 0; i <= size; i += 512 {
				data = binary.LittleEndian.AppendUint64(data, uint64(i))
			}
		default:
			data = append(data[:at], data[min(at+8, len(data)):]...)
		}
		return string(data)
	}
	lines := strings.SplitAfter(index, "\n")
	i := 1 + rng.IntN(len(lines)-2)
	words := strings.Fields(lines[i])
	m := rng.IntN(len(words)/4) * 4
	number := func(word int, add int) {
		n := 0
		_, _ = fmt.Sscan(words[word], &n)
		words[word] = fmt.Sprint(n + add)
	}
	how := rng.IntN(10)
	if large && (how == 3 || how == 6) { // a sample of headers does not show it
		how = 0
	}
	switch how {
	case 0: // all are shifted
		for i := 1; i < len(lines)-1; i++ {
			words = strings.Fields(lines[i])
			for m := 0; m < len(words); m += 4 {
				number(m+1, 512)
			}
			lines[i] = strings.Join(words, " ") + "\n"
		}
		return strings.Join(lines, "")
	case 1:
		return index[:rng.IntN(len(index))]
	case 2:
		return another
	case 3:
		number(m+2, rng.IntN(5)-2)
	case 4:
		words[m+2] = fmt.Sprint(rng.Int64())
	case 5:
		words[m+1] = fmt.Sprint(-512 * rng.Int64N(100))
	case 6:
		words[m+3] = "x" + words[m+3]
	case 7: // without its last samples, and without saying so
		lines = lines[:i+1]
		lines[0] = fmt.Sprintf("v1.2 %d\n", i)
		return strings.Join(lines, "")
	case 8: // a sample is left out
		lines = slices.Delete(lines, i, i+1)
		lines[0] = fmt.Sprintf("v1.2 %d\n", len(lines)-2)
		return strings.Join(lines, "")
	default:
		number(m+1, rng.IntN(3)*512-256)
	}
	lines[i] = strings.Join(words, " ") + "\n"
	return strings.Join(lines, "")
}

// With any indexes next to tars, the rows are those of the headers: each blob has its
// true offset and size.
func TestIndexesThatDiffer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := startS3(t)
	noted, used := 0, 0
	for round := range 60 {
		var contents []string
		for n := range 1 + rng.IntN(3) {
			content, _ := randomTar(t, rng, n)
			if rng.IntN(8) == 0 { // two tars that were joined
				more, _ := randomTar(t, rng, 10+n)
				content = append(content, more...)
			}
			contents = append(contents, string(content))
		}
		another, _ := randomTar(t, rng, 50)
		for n, content := range contents {
			name := fmt.Sprintf("%d/x-%d", round, n)
			s.PutObject("b", name+".tar", []byte(content))
			kind := []TarIndex{EnergonIndex, DALIIndex}[rng.IntN(2)]
			index := indexOf(t, content, kind)
			if rng.IntN(4) > 0 {
				index = alterIndex(rng, kind, index, indexOf(t, string(another), kind), len(content), false)
			}
			s.PutObject("b", kind.Name(name+".tar"), []byte(index))
		}
		opts := s.opts
		opts.Walk, opts.Index = true, IndexNone
		want := readOnce(t, s.url(fmt.Sprint(round)), opts, ReadOptions{})
		for _, use := range []UseIndex{IndexSample, IndexAll} {
			opts.Index = use
			got := readOnce(t, s.url(fmt.Sprint(round)), opts, ReadOptions{})
			noted += len(got.notes) - len(want.notes)
			used++
			if got.rowsText() != want.rowsText() || fmt.Sprint(got.at) != fmt.Sprint(want.at) {
				t.Fatalf("round %d, %s, notes %q:\n%s%v\nby headers\n%s%v", round, use, got.notes, got.rowsText(), got.at,
					want.rowsText(), want.at)
			}
		}
		opts.Walk, opts.Index = false, IndexNone
		want = readOnce(t, s.url(fmt.Sprint(round)), opts, ReadOptions{})
		opts.Index = IndexSample
		if got := readOnce(t, s.url(fmt.Sprint(round)), opts, ReadOptions{}); len(got.bad) <= len(want.bad) &&
			got.rowsText() != want.rowsText() {
			t.Fatalf("round %d, all read:\n%s\nby headers\n%s", round, got.rowsText(), want.rowsText())
		}
	}
	if noted < 20 {
		t.Errorf("%d readings have noted %d indexes that differ", used, noted)
	}
}

// For large tars a sample of members is compared. It detects indexes that are shifted,
// cut off, of another tar, incomplete, or impossible. If all headers are read, an index
// makes no difference.
func TestIndexesOfLargeTars(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := startS3(t)
	large := func(n int) string {
		var members []entry
		for i := range 100 + rng.IntN(200) {
			for _, ext := range []string{".bin", ".cls"} {
				content := strings.Repeat("x", rng.IntN(3000))
				if ext == ".cls" {
					content = fmt.Sprint(i)
				}
				members = append(members, entry{fmt.Sprintf("%d-%d%s", n, i, ext), content})
			}
		}
		return makeTar(t, members...)
	}
	opts := s.opts
	opts.Walk = true
	for round := range 12 {
		content, another := large(round), large(round+100)
		s.PutObject("b", fmt.Sprintf("%d/x.tar", round), []byte(content))
		opts.Index = IndexNone
		want := walkedRows(t, s.url(fmt.Sprint(round)), opts)
		for i := range 8 {
			opts.Index = []UseIndex{IndexSample, IndexAll}[i%2]
			for _, kind := range []TarIndex{EnergonIndex, DALIIndex} {
				index := alterIndex(rng, kind, indexOf(t, content, kind), indexOf(t, another, kind), len(content),
					opts.Index == IndexSample)
				s.PutObject("b", kind.Name(fmt.Sprintf("%d/x.tar", round)), []byte(index))
			}
			if got := walkedRows(t, s.url(fmt.Sprint(round)), opts); !slices.Equal(got, want) {
				t.Fatalf("round %d: %d rows, by headers %d", round, len(got), len(want))
			}
		}
	}
}

// walkedRows are the samples of a data set that is walked, with their extents.
func walkedRows(t *testing.T, url string, opts Options) (rows []string) {
	t.Helper()
	src, err := Open(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	for sample, err := range src.Samples(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, fmt.Sprint(sample.Key, sample.Meta, sample.At, sample.Bad))
	}
	return rows
}

// An index that names members saves most requests. An index of offsets saves none, but
// makes them parallel. Headers are read once, although columns and samples both need
// them.
func TestIndexesSaveRequests(t *testing.T) {
	s := startS3(t)
	var members []entry
	const samples = 400
	for i := range samples {
		members = append(members, entry{fmt.Sprintf("%04d.bin", i), strings.Repeat("x", 5000+i)})
	}
	content := makeTar(t, members...)
	gets := map[string]int64{}
	for name, kind := range map[string]TarIndex{"none": "", "energon": EnergonIndex, "dali": DALIIndex} {
		s.PutObject("b", name+"/a.tar", []byte(content))
		if kind != "" {
			s.PutObject("b", kind.Name(name+"/a.tar"), []byte(indexOf(t, content, kind)))
		}
		opts := s.opts
		opts.Walk, opts.Index = true, IndexSample
		before := s.Counts()
		src, err := Open(t.Context(), s.url(name), opts)
		if err != nil {
			t.Fatal(err)
		}
		rows := 0
		for sample, err := range src.Samples(t.Context()) {
			if err != nil || sample.Bad != "" || sample.At[0].Length != int64(5000+rows) {
				t.Fatalf("%s: %+v, %v", name, sample, err)
			}
			rows++
		}
		gets[name] = s.Counts().Requests[objecttest.Get] - before.Requests[objecttest.Get]
		if rows != samples || len(src.Notes()) > 1 {
			t.Errorf("%s: %d rows, notes %q", name, rows, src.Notes())
		}
		if e := src.Estimate().Walked.Requests; e > 3*gets[name]+10 || e < gets[name]/3 {
			t.Errorf("%s: %d requests were estimated, and %d made", name, e, gets[name])
		}
	}
	t.Log(gets)
	if gets["none"] > samples+20 || gets["energon"] > samples+40 || gets["dali"] > indexChecks+16 {
		t.Errorf("reads by index: %v", gets)
	}
}

// If an index of a folder states a wrong number of samples for a tar, a note names the
// tar.
func TestIndexesOfCounts(t *testing.T) {
	for name, index := range map[string]string{
		"wids.json":            `{"__kind__": "wids-shard-index-v1", "shardlist": [{"url": "s3://x/y/a.tar", "nsamples": %d}]}`,
		"sets.json":            `{"datasets": [{"shardlist": [{"url": "a.tar", "nsamples": %d}]}]}`,
		".nv-meta/.info.json":  `{"shard_counts": {"a.tar": %d}}`,
		".nv-meta/.info.yaml":  "shard_counts:\n  a.tar: %d\n",
		".nv-meta/.other.json": "",
	} {
		s := startS3(t)
		s.PutObject("b", "d/a.tar", []byte(makeTar(t, entry{"1.bin", "x"}, entry{"2.bin", "y"})))
		for _, count := range []int{2, 3} {
			text := index
			if text != "" {
				text = fmt.Sprintf(index, count)
			}
			s.PutObject("b", "d/"+name, []byte(text))
			r := readOnce(t, s.url("d"), s.opts, ReadOptions{})
			want := text != "" && count == 3
			if got := strings.Contains(fmt.Sprint(r.notes), "a.tar has 3 samples, and it has 2"); got != want || len(r.keys) != 2 {
				t.Errorf("%s says %d: notes %q, rows %q", name, count, r.notes, r.keys)
			}
		}
	}
}

// An index that names members also works for a tar with folders, links and extended
// headers between members.
func TestIndexOfManyHeaders(t *testing.T) {
	s := startS3(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var content []byte
	for len(content) < 200_000 {
		content, _ = randomTar(t, rng, 1)
		if bytes.Count(content, []byte("ustar")) > 20 {
			break
		}
	}
	s.PutObject("b", "d/a.tar", content)
	opts := s.opts
	opts.Walk, opts.Index = true, IndexSample
	want := readOnce(t, s.url("d"), opts, ReadOptions{})
	s.PutObject("b", "d/a.idx", []byte(indexOf(t, string(content), DALIIndex)))
	got := readOnce(t, s.url("d"), opts, ReadOptions{})
	if len(got.notes) != len(want.notes) || got.rowsText() != want.rowsText() {
		t.Errorf("notes %q\n%s\nby headers\n%s", got.notes, got.rowsText(), want.rowsText())
	}
}
