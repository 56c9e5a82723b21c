package faults

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// TestHistory: the events that processes record are read in the order of time, except for a line that a kill has cut.
func TestHistory(t *testing.T) {
	dir := t.TempDir()
	var recorders []*Recorder
	for _, name := range []string{"one", "two"} {
		r, err := NewRecorder(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		recorders = append(recorders, r)
	}
	var want []string
	for i := range 6 {
		r := recorders[i%2]
		e, err := r.Begin(Event{Do: List, Dataset: "d"})
		if err == nil && i < 4 {
			e.Numbers = []int64{1, 2}
			err = r.End(e, OK)
		}
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, r.process+" "+Invoke)
		if i < 4 {
			want = append(want, r.process+" "+OK)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "one.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"process":"one","op":9,`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	events, err := ReadHistory(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, e := range events {
		got = append(got, e.Process+" "+e.Type)
		if i > 0 && e.At < events[i-1].At || time.Since(e.Wall) > time.Minute {
			t.Errorf("event %d is at %d, %s", i, e.At, e.Wall)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := NewRecorder(dir, "one"); err == nil {
		t.Error("a process has the name of another")
	}
	if found, _ := Check(events); len(found) > 0 {
		t.Error(found)
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.jsonl"), []byte("{]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadHistory(dir); err == nil {
		t.Error("a line that is no event is accepted")
	}
}
