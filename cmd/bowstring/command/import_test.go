package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bowstring/cmd/bowstring/source"
	"bowstring/fetch/store/local"
)

// runImport runs "bowstring import" in this process and returns what it wrote.
func runImport(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return runCommand(t, append([]string{"import"}, args...)...)
}

// runCommand does so with any command.
func runCommand(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Chdir(home)
	out, err := os.Create(filepath.Join(home, "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	errs, err := os.Create(filepath.Join(home, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _, _ = out.Close(), errs.Close(), in.Close() }()
	program, _ := bowstring()
	status = program.Run(args, in, out, errs)
	read := func(f *os.File) string {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return status, read(out), read(errs)
}

// photos writes an image folder: n images of two classes in two splits.
func photos(t *testing.T, n int) string {
	t.Helper()
	root := t.TempDir()
	for i := range n {
		split := "train"
		if i%4 == 3 {
			split = "val"
		}
		path := filepath.Join(root, split, []string{"ant", "bee"}[i%2], fmt.Sprintf("%03d.jpg", i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, photo(t, i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func photo(t *testing.T, i int) []byte {
	t.Helper()
	m := image.NewGray(image.Rect(0, 0, 16, 9))
	for p := range m.Pix {
		m.Pix[p] = uint8(p * i)
	}
	var b bytes.Buffer
	if err := jpeg.Encode(&b, m, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// snapshots returns the numbers of a dataset's snapshots, none if there is no such dataset.
func snapshots(t *testing.T, dir, dataset string) []int64 {
	t.Helper()
	store, err := local.Open(dir, local.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	list, err := store.Datasets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.Name == dataset {
			return d.Snapshots
		}
	}
	return nil
}

var (
	times = regexp.MustCompile(`time     .*|"(seconds|mb_per_s)": [0-9.e+-]+`)
	sizes = regexp.MustCompile(`[0-9.]+ kB|"bytes": [0-9]+`)
)

// stable replaces what differs from run to run, or with the encoder of the images.
func stable(text, root string) string {
	text = strings.ReplaceAll(text, root, "ROOT")
	return sizes.ReplaceAllString(times.ReplaceAllString(text, "TIME"), "SIZE")
}

func TestImport(t *testing.T) {
	root, store := photos(t, 12), filepath.Join(t.TempDir(), "store")
	steps := []struct {
		name string
		args []string
		want string
	}{
		{"dry run", []string{"--dry-run"},
			`photos: 12 samples can be imported from imagefolder ROOT; nothing was, as --dry-run says
  splits   train 9, val 3
  classes  2 in label
  blobs    12, SIZE
  TIME
`},
		{"first", nil, `photos: snapshot 1, 12 samples from imagefolder ROOT
  splits   train 9, val 3
  classes  2 in label
  blobs    12, SIZE
  TIME
`},
		{"again", nil, `photos: unchanged, snapshot 1, 12 samples from imagefolder ROOT
  splits   train 9, val 3
  classes  2 in label
  blobs    12, SIZE, 12 of them stored already
  TIME
`},
		{"limit, as JSON", []string{"--limit", "3", "--json"}, `{
  "dataset": "photos",
  "snapshot": 2,
  "changed": true,
  "format": "imagefolder",
  "source": "imagefolder ROOT",
  "rows": 3,
  "splits": [
    {
      "name": "train",
      "rows": 3
    }
  ],
  "classes": {
    "label": 2
  },
  "blobs": 3,
  SIZE,
  "dedups": 3,
  "bad": 0,
  "notes": [
    "splits that are gone: val (3 rows)"
  ],
  TIME,
  TIME
}
`},
	}
	for _, s := range steps {
		status, out, errs := runImport(t, append([]string{root, "photos", "--store", store}, s.args...)...)
		if status != 0 || errs != "" {
			t.Fatalf("%s: status %d, %s", s.name, status, errs)
		}
		if got := stable(out, root); got != s.want {
			t.Errorf("%s: got\n%s\nwant\n%s", s.name, got, s.want)
		}
		if _, err := os.Stat(store); s.name == "dry run" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the dry run made a store: %v", err)
		}
	}
	if got := snapshots(t, store, "photos"); len(got) != 2 {
		t.Errorf("snapshots %v, want 2", got)
	}
	status, _, errs := runImport(t, root, "photos", "--store", store, "--mode", "create")
	if status != 1 || !strings.Contains(errs, "already exists") {
		t.Errorf("create: status %d, %s", status, errs)
	}
	status, _, errs = runImport(t, root, "photos", "--store", store, "--mode", "append")
	if status != 1 || !strings.Contains(errs, "3 ids are in photos@2 already") {
		t.Errorf("append: status %d, %s", status, errs)
	}
	status, out, errs := runImport(t, filepath.Join(root, "train"), "classes", "--dry-run")
	if status != 0 || !strings.Contains(out, "splits   train 9\n") {
		t.Errorf("a source without splits: status %d, %s%s", status, out, errs)
	}
	status, out, errs = runImport(t, root, "--store", store, "--split", "val", "--json")
	if want := fmt.Sprintf(`"dataset": %q`, filepath.Base(root)); status != 0 || !strings.Contains(out, want) {
		t.Errorf("default name: status %d, %s%s, want %s", status, out, errs, want)
	}
}

func TestImportBad(t *testing.T) {
	root, store := photos(t, 80), filepath.Join(t.TempDir(), "store")
	for i := range 60 {
		path := filepath.Join(root, "train", "ant", fmt.Sprintf("%03d.jpg", 100+i))
		if err := os.WriteFile(path, photo(t, i)[:100+i], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	status, out, errs := runImport(t, root, "photos", "--store", store)
	if status != 1 || out != "" {
		t.Errorf("status %d, %s", status, out)
	}
	lines := strings.Split(strings.TrimSpace(errs), "\n")
	if len(lines) != printedBad+2 || !strings.HasPrefix(lines[0], "bad: train/ant/100.jpg: cut short") ||
		lines[printedBad] != "and 10 more; --bad-list FILE lists all" ||
		!strings.Contains(lines[printedBad+1], "60 of 140 samples cannot be imported, so none was") {
		t.Errorf("%d lines: %s", len(lines), errs)
	}
	if got := snapshots(t, store, "photos"); got != nil {
		t.Errorf("snapshots %v, want none", got)
	}

	list := filepath.Join(t.TempDir(), "bad.jsonl")
	status, out, errs = runImport(t, root, "photos", "--store", store, "--skip-bad", "--bad-list", list)
	if status != 0 || !strings.Contains(out, "skipped  60 bad samples, listed in "+list) ||
		!strings.Contains(out, "80 samples") {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
	data, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	var items []source.BadItem
	for line := range strings.Lines(string(data)) {
		var item source.BadItem
		if err := json.Unmarshal([]byte(line), &item); err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
	if len(items) != 60 || items[59].Key != "train/ant/159.jpg" || items[59].Reason == "" {
		t.Errorf("%d items, the last is %v", len(items), items[len(items)-1])
	}
}

func TestImportMistakes(t *testing.T) {
	root, store := photos(t, 4), filepath.Join(t.TempDir(), "store")
	for _, c := range []struct {
		status  int
		message string
		args    []string
	}{
		{1, "no such file", []string{root + "x", "photos"}},
		{1, "no data set of a known format; looked for", []string{t.TempDir(), "photos"}},
		{2, "dataset", []string{root, "not a name"}},
		{2, "--limit", []string{root, "photos", "--limit=-1"}},
		{2, "split", []string{root, "photos", "--split", "a/b"}},
		{1, "there is no split \"test\", only train, val", []string{root, "photos", "--split", "test"}},
		{2, "--format", []string{root, "photos", "--format", "lance"}},
		{1, "read " + root + " as mds", []string{root, "photos", "--format", "mds"}},
	} {
		status, out, errs := runImport(t, append(c.args, "--store", store)...)
		if status != c.status || out != "" || !strings.Contains(errs, c.message) {
			t.Errorf("%q: status %d, %s, %s; want %d, %q", c.args, status, out, errs, c.status, c.message)
		}
	}
	if got := snapshots(t, store, "photos"); got != nil {
		t.Errorf("snapshots %v, want none", got)
	}
}

// TestImportCancelled ends an import in the midst of it, as Ctrl-C does.
func TestImportCancelled(t *testing.T) {
	root, store := photos(t, 40), filepath.Join(t.TempDir(), "store")
	app, cli := testApp(t, "import", root, "photos", "--store", store)
	cause := signalError{os.Interrupt}
	ctx, cancel := context.WithCancelCause(t.Context())
	src, err := source.Open(ctx, root, source.Options{})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := source.NewReader(src, source.ReadOptions{Dataset: "photos"})
	if err != nil {
		t.Fatal(err)
	}
	c := &cli.Import
	to, err := c.open(ctx, app, src, reader)
	if err != nil {
		t.Fatal(err)
	}
	sum := newSummary(c.Dataset, &c.ReadFlags, src, reader.Schema())
	err = c.read(ctx, app, src, reader, &cancelling{to, func() { cancel(cause) }}, sum, &badList{})
	if !errors.Is(err, cause) {
		t.Errorf("%v, want the signal", err)
	}
	if err := to.Close(); err != nil {
		t.Error(err)
	}
	if got := snapshots(t, store, "photos"); got != nil {
		t.Errorf("snapshots %v, want none", got)
	}
}

// cancelling cancels after the first batch was written.
type cancelling struct {
	sink
	cancel func()
}

func (c *cancelling) Write(ctx context.Context, b *source.Batch) error {
	err := c.sink.Write(ctx, b)
	c.cancel()
	return err
}

// testApp parses a command line as run does.
func testApp(t *testing.T, args ...string) (*App, *CLI) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Chdir(home)
	program, cli := bowstring()
	app := &App{globals: program.Globals, Stdout: io.Discard, Stderr: io.Discard, Log: slog.New(slog.DiscardHandler)}
	parser, err := program.parser(app)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	return app, cli
}

// TestImportToServer uploads to a node by DoPut: the snapshot is the one that
// an import into the store makes.
func TestImportToServer(t *testing.T) {
	root, dir := photos(t, 30), filepath.Join(t.TempDir(), "store")
	n, err := newNode(t.Context(), dir, true, limits{}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.serve(l)
	server := "grpc://" + l.Addr().String()
	for _, want := range []string{"photos: snapshot 1, 7 samples", "photos: unchanged, snapshot 1, 7 samples"} {
		if status, out, errs := runImport(t, root, "photos", "--split", "val", "--server", server); status != 0 ||
			!strings.HasPrefix(out, want) {
			t.Errorf("status %d, %s%s; want %s", status, out, errs, want)
		}
	}
	if status, _, errs := runImport(t, root, "photos", "--split", "val", "--server", server, "--mode",
		"create"); status != 1 || !strings.Contains(errs, "exists") {
		t.Errorf("create: status %d, %s", status, errs)
	}
	if err := n.close(t.Context()); err != nil {
		t.Error(err)
	}
	// Into the store itself, nothing changes.
	if status, out, errs := runImport(t, root, "photos", "--split", "val", "--store", dir); status != 0 ||
		!strings.Contains(out, "unchanged, snapshot 1") {
		t.Errorf("into the store: status %d, %s%s", status, out, errs)
	}
}
