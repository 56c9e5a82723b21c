package object_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// counterVariable makes the test's program one of several that count in a bucket.
const counterVariable = "BOWSTRING_OBJECT_COUNTER"

const countEach = 25

// count adds one to a counter, again and again, by conditional writes.
func count(url string) error {
	ctx := context.Background()
	b, err := object.Open(ctx, url, object.Options{})
	if err != nil {
		return err
	}
	for n := 0; n < countEach; {
		text, info, err := b.Get(ctx, "counter", schema.ObjectVersion{}, 100)
		if err != nil {
			return err
		}
		have, err := strconv.Atoi(string(text))
		if err != nil {
			return err
		}
		_, outcome, err := b.Put(ctx, "counter", []byte(strconv.Itoa(have+1)), object.Condition{Version: info.Version})
		switch outcome {
		case object.Made:
			n++
		case object.Moved:
		case object.Failed, object.Uncertain:
			return fmt.Errorf("%v: %w", outcome, err)
		}
	}
	return b.Close()
}

// Processes that write to one directory exclude each other.
func TestDirectoryOfProcesses(t *testing.T) {
	const processes = 6
	url := "file://" + t.TempDir()
	b := open(t, url, object.Options{})
	if _, _, err := b.Put(t.Context(), "counter", []byte("0"), object.Condition{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			c := exec.CommandContext(t.Context(), os.Args[0])
			c.Env = append(os.Environ(), counterVariable+"="+url)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	text, _, err := b.Get(t.Context(), "counter", schema.ObjectVersion{}, 100)
	if err != nil || string(text) != strconv.Itoa(processes*countEach) {
		t.Fatalf("%d processes counted to %s, want %d: %v", processes, text, processes*countEach, err)
	}
}

// wrong is a bucket with a mistake.
type wrong struct {
	object.Bucket

	mistake string
}

func (w *wrong) Range(ctx context.Context, key string, v schema.ObjectVersion, offset int64, buf []byte) error {
	switch {
	case w.mistake == "reads any version":
		v = schema.ObjectVersion{}
	case w.mistake == "reads a byte further on" && offset > 0 && len(buf) > 1:
		return w.Bucket.Range(ctx, key, v, offset-1, buf)
	}
	return w.Bucket.Range(ctx, key, v, offset, buf)
}

func (w *wrong) Put(ctx context.Context, key string, body []byte, c object.Condition) (object.Info, object.Outcome,
	error) {
	switch {
	case w.mistake == "creates twice":
		c.Absent = false
	case w.mistake == "updates any version":
		c.Version = schema.ObjectVersion{}
	case w.mistake == "checks, then writes" && !c.Version.IsZero():
		if i, err := w.Stat(ctx, key); err == nil && i.Version == c.Version {
			c = object.Condition{}
		}
	}
	i, outcome, err := w.Bucket.Put(ctx, key, body, c)
	if w.mistake == "versions of the length" && outcome == object.Made {
		i.Version = schema.ObjectVersion{ETag: strconv.Itoa(len(body))}
	}
	return i, outcome, err
}

func (w *wrong) Delete(ctx context.Context, key string) error {
	if w.mistake == "deletes nothing" {
		return nil
	}
	return w.Bucket.Delete(ctx, key)
}

func (w *wrong) List(ctx context.Context, opts object.ListOptions) iter.Seq2[object.Info, error] {
	all := w.Bucket.List(ctx, opts)
	if !strings.HasPrefix(w.mistake, "lists") {
		return all
	}
	return func(yield func(object.Info, error) bool) {
		var got []object.Info
		for i, err := range all {
			if err != nil {
				yield(i, err)
				return
			}
			got = append(got, i)
		}
		switch {
		case w.mistake == "lists backwards":
			slices.Reverse(got)
		case w.mistake == "lists a page" && len(got) > 1000:
			got = got[:1000]
		case w.mistake == "lists directories first":
			slices.SortStableFunc(got, func(a, b object.Info) int {
				return strings.Count(b.Key, "/") - strings.Count(a.Key,
					"/")
			})
		}
		for _, i := range got {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// mistakeVariable names the mistake that TestMistaken runs the suite with.
const mistakeVariable = "BOWSTRING_OBJECT_MISTAKE"

// The suite finds mistakes: each is made in a process of its own, whose tests are to fail.
func TestSuiteFindsMistakes(t *testing.T) {
	mistakes := []string{"reads any version", "reads a byte further on", "creates twice", "updates any version",
		"checks, then writes",
		"versions of the length", "deletes nothing", "lists backwards", "lists a page", "lists directories first"}
	for _, mistake := range append(mistakes, "none") {
		t.Run(mistake, func(t *testing.T) {
			c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMistaken$")
			c.Env = append(os.Environ(), mistakeVariable+"="+mistake)
			out, err := c.CombinedOutput()
			if found := err != nil && bytes.Contains(out, []byte("--- FAIL: TestMistaken/")); found != (mistake != "none") {
				t.Fatalf("%v: %s", err, out)
			}
		})
	}
}

func TestMistaken(t *testing.T) {
	mistake := os.Getenv(mistakeVariable)
	if mistake == "" {
		t.Skip("TestSuiteFindsMistakes runs it")
	}
	s := start(t, objecttest.Config{})
	objecttest.Run(t, func(t *testing.T) object.Bucket {
		return &wrong{Bucket: open(t, s.URL("bucket"), object.Options{}), mistake: mistake}
	}, objecttest.Traits{})
}
