package command

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"bowstring/fetch/store/local"
)

// drop asks on a terminal, and only a yes is a yes.
func TestDropAsks(t *testing.T) {
	for _, tc := range []struct {
		answer  string
		dropped bool
	}{
		{"y\n", true}, {" YES \n", true}, {"n\n", false}, {"\n", false}, {"", false}, {"yesterday\n", false},
	} {
		t.Run(strings.TrimSpace(tc.answer), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			for range 2 { // two snapshots
				if err := makeDataset(dir, "photos", 6, 0); err != nil {
					t.Fatal(err)
				}
				if err := makeDataset(dir, "photos", 9, 0); err != nil {
					t.Fatal(err)
				}
			}
			var stderr bytes.Buffer
			program, _ := bowstring()
			app := &App{globals: program.Globals, Stdin: strings.NewReader(tc.answer), Stdout: t.Output(), Stderr: &stderr, Interactive: true,
				Log: slog.New(slog.DiscardHandler)}
			parser, err := program.parser(app)
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := parser.Parse([]string{"drop", "photos", "--store", dir})
			if err != nil {
				t.Fatal(err)
			}
			parsed.BindTo(t.Context(), (*context.Context)(nil))
			if err := parsed.Run(app); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(stderr.String(), "Drop dataset photos with 4 snapshots? [y/N] ") {
				t.Errorf("asked: %q", stderr.String())
			}
			store, err := local.Open(dir, local.Options{Logger: app.Log})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			left, err := store.Datasets(t.Context())
			if err != nil || (len(left) == 0) != tc.dropped {
				t.Errorf("left %v, %v; want dropped %v", left, err, tc.dropped)
			}
		})
	}
}

// Ctrl-C leaves the question.
func TestConfirmInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	answer := make(chan struct{})
	defer close(answer)
	app := &App{Stderr: t.Output(), Stdin: readerFunc(func([]byte) (int, error) {
		close(asked)
		<-answer
		return 0, iotest.ErrTimeout
	})}
	go func() {
		<-asked
		cancel()
	}()
	if ok, err := app.confirm(ctx, "Drop it?"); ok || err == nil {
		t.Errorf("got %v, %v; want an error", ok, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
