package source

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// leading is a data set with a path or link out of its folder.
type leading struct {
	name  string
	path  string // of the data set
	whole bool   // the data set cannot be read at all; otherwise the sample is bad
	opts  Options
}

// link makes a link, in a folder that exists.
func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

// leadings are data sets of each format with a path to a file of a private folder.
func leadings(t *testing.T) (list []leading) {
	picture := jpg(t, 1)
	private := tree(t, map[string]string{"secret.jpg": picture, "shard.tar": makeTar(t, entry{"a.jpg", picture}),
		"secret.mp3": picture, "train.tsv": "path\tsentence\na.mp3\tx\n"})
	secret := filepath.Join(private, "secret.jpg")
	add := func(name, path string, whole bool, opts Options) {
		list = append(list, leading{name, path, whole, opts})
	}

	// Tables of paths.
	for kind, written := range map[string]string{
		"an absolute path":  secret,
		"a relative path":   "../" + filepath.Base(private) + "/secret.jpg",
		"dots within":       "in/../../" + filepath.Base(private) + "/secret.jpg",
		"a linked folder":   "linked/secret.jpg",
		"a linked file":     "in/linked.jpg",
		"dots after a link": "DIR/linked/../" + filepath.Base(private) + "/secret.jpg",
	} {
		parent := filepath.Dir(private)
		dir, err := os.MkdirTemp(parent, "list-*")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "in"), 0o700), os.WriteFile(filepath.Join(dir, "in/x.jpg"),
			[]byte(picture), 0o600), os.WriteFile(filepath.Join(dir, "t.csv"),
			[]byte("path\n"+strings.Replace(written, "DIR", dir, 1)+"\nin/x.jpg\n"+filepath.Join(dir, "in/./x.jpg")+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		link(t, private, filepath.Join(dir, "linked"))
		link(t, secret, filepath.Join(dir, "in/linked.jpg"))
		add("list, "+kind, filepath.Join(dir, "t.csv"), false, Options{})
	}

	images := tree(t, map[string]string{"a/x.jpg": picture})
	link(t, secret, filepath.Join(images, "a/y.jpg"))
	add("imagefolder", images, false, Options{})

	voice := tree(t, map[string]string{"clips/b.mp3": picture, "train.tsv": "path\tsentence\na.mp3\tx\n"})
	link(t, filepath.Join(private, "secret.mp3"), filepath.Join(voice, "clips/a.mp3"))
	add("commonvoice, a clip", voice, false, Options{})
	voice = tree(t, map[string]string{"clips/a.mp3": picture})
	link(t, filepath.Join(private, "train.tsv"), filepath.Join(voice, "train.tsv"))
	add("commonvoice, a table", voice, true, Options{})

	tars := tree(t, map[string]string{"1.tar": makeTar(t, entry{"b.jpg", picture})})
	link(t, filepath.Join(private, "shard.tar"), filepath.Join(tars, "2.tar"))
	add("webdataset", tars, true, Options{})
	add("webdataset, a pattern", filepath.Join(tars, "*.tar"), true, Options{})
	add("webdataset, braces", filepath.Join(tars, "{1..2}.tar"), true, Options{})

	shards := tree(t, map[string]string{"data/x": ""})
	fields := []arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "b", Type: arrow.BinaryTypes.Binary}}
	for _, at := range []string{filepath.Join(private, "p.parquet"), filepath.Join(shards, "data/1.parquet")} {
		writeParquet(t, at, "", fields, `[1]`, `["AAAA"]`)
	}
	link(t, filepath.Join(private, "p.parquet"), filepath.Join(shards, "data/2.parquet"))
	add("parquet", shards, true, Options{})

	shard := []byte("\x00\x00\x00\x00")
	mds := mdsDir(t, nil, "other", shard)
	outside := mdsDir(t, nil, "s.mds", shard)
	link(t, filepath.Join(outside, "s.mds"), filepath.Join(mds, "s.mds"))
	add("mds, a shard", mds, true, Options{})
	mds = tree(t, map[string]string{"s.mds": string(shard)})
	link(t, filepath.Join(outside, "index.json"), filepath.Join(mds, "index.json"))
	add("mds, an index", mds, true, Options{})
	return list
}

// No importer follows a path or a link out of the data set's folder: the author names a
// file there, but it belongs to the user. A flag allows it.
func TestNothingOutsideIsTaken(t *testing.T) {
	for _, one := range leadings(t) {
		t.Run(one.name, func(t *testing.T) {
			said := ""
			_, err := Open(t.Context(), one.path, one.opts)
			if err != nil {
				said = err.Error()
			} else {
				for _, bad := range readAll(t, one.path, one.opts, ReadOptions{Verify: VerifyNone}).bad {
					said += bad.Key + ": " + bad.Reason + "\n"
				}
			}
			if (err != nil) != one.whole || err != nil && !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("error %v, want one: %v", err, one.whole)
			}
			if strings.Count(said, "out of the folder, to ") != 1 || !strings.Contains(said, "--allow-outside takes it") {
				t.Errorf("it is not refused by name, once:\n%s", said)
			}
			one.opts.Outside = true
			_, err = Open(t.Context(), one.path, one.opts)
			if err != nil && strings.Contains(err.Error(), "out of the folder") {
				t.Errorf("with the flag: %v", err)
			}
		})
	}
}

// Shards of MDS and clips must be within their folder, also with the flag.
func TestNamesThatLeadOut(t *testing.T) {
	for _, name := range []string{"../s.mds", "/etc/passwd", "a/../../s.mds", ""} {
		for index, of := range map[string]map[string]any{
			"raw": {"raw_data": map[string]any{"basename": name, "bytes": 4}},
			"zip": {"zip_data": map[string]any{"basename": name, "bytes": 4}, "compression": "zstd"},
		} {
			if index == "zip" && name == "" {
				continue
			}
			root := mdsDir(t, of, "s.mds", []byte("\x00\x00\x00\x00"))
			for _, outside := range []bool{false, true} {
				if _, err := Open(t.Context(), root, Options{Outside: outside}); !errors.Is(err, schema.ErrInvalid) {
					t.Errorf("%s %q: %v", index, name, err)
				}
			}
		}
		if got := clip(name); name != "" && got != "" {
			t.Errorf("clip %q is read from %q", name, got)
		}
	}
}
