package faults

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Commit and the constants below it are the operations. The comments list the fields of
// Event that they use.
const (
	Commit  = "commit"  // Import and Digest into Dataset after Parent; Number is the assigned one
	Drop    = "drop"    // Number
	Tag     = "tag"     // Number gets the name Tag
	Untag   = "untag"   // the name Tag is removed
	Tagged  = "tagged"  // Number is what has the name Tag, 0 if nothing has
	Read    = "read"    // Number: its Import, Digest, and Damage if it was there; Absent if not
	List    = "list"    // Numbers of Dataset
	Collect = "collect" // Damage if the collection found any
	// Left counts what is still stored when everything was dropped and collected.
	Left = "left"
	// Healed marks that no faults follow. It has no end.
	Healed = "healed"
)

// Invoke, OK, Fail and Info are the types of an event. OK, Fail and Info are outcomes.
const (
	Invoke = "invoke" // the operation is about to begin
	OK     = "ok"     // the operation took effect
	Fail   = "fail"   // the operation did not take effect, and never will
	Info   = "info"   // the outcome is unknown, as for an operation without another event
)

// Missing and Wrong are the damage that a reader of a snapshot may find.
const (
	Missing = "missing" // a blob or a chunk is not there
	Wrong   = "wrong"   // the bytes differ from the imported ones
)

// Event is a line of a history: an operation begins or ends.
type Event struct {
	// Process is the process of the operation. A process does one operation at a time.
	// After a kill it comes back under another name, because its last operation has no
	// known end.
	Process string `json:"process"`
	Op      int64  `json:"op"` // counts the process's operations
	Type    string `json:"type"`
	Do      string `json:"do"`

	Dataset string  `json:"dataset,omitempty"`
	Number  int64   `json:"number,omitempty"`
	Parent  int64   `json:"parent,omitempty"`
	Import  string  `json:"import,omitempty"` // names an attempt to import; no two have the same
	Digest  string  `json:"digest,omitempty"` // of all bytes of a snapshot
	Tag     string  `json:"tag,omitempty"`
	Numbers []int64 `json:"numbers,omitempty"`
	Absent  bool    `json:"absent,omitempty"` // the snapshot was not found
	Damage  string  `json:"damage,omitempty"`
	Count   int64   `json:"count,omitempty"`
	Error   string  `json:"error,omitempty"`

	// At is in nanoseconds of the machine's monotonic clock, which all processes share.
	// It is taken before an operation begins and after it has ended, so that the real
	// operation is between the two. Faults change the wall clock, which is for people
	// only.
	At   int64     `json:"at"`
	Wall time.Time `json:"wall"`
}

// Recorder writes a process's events. Each event is one write, so that a killed process
// leaves all events that it recorded. One goroutine uses it at a time.
type Recorder struct {
	process string
	file    *os.File
	op      int64
}

// NewRecorder creates the file of a process in a folder. It returns an error if the file
// exists: two processes of one name would mix their operations.
func NewRecorder(dir, process string) (*Recorder, error) {
	f, err := os.OpenFile(filepath.Join(dir, process+".jsonl"), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Recorder{process: process, file: f}, nil
}

// Begin records that an operation begins, and returns the event to pass to End.
func (r *Recorder) Begin(e Event) (Event, error) {
	r.op++
	e.Op, e.Type = r.op, Invoke
	return e, r.write(e)
}

// End records the outcome of an operation.
func (r *Recorder) End(e Event, how string) error {
	e.Type = how
	return r.write(e)
}

// write appends an event with the current times.
func (r *Recorder) write(e Event) error {
	e.Process, e.At, e.Wall = r.process, monotonic(), time.Now()
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = r.file.Write(append(line, '\n'))
	return err
}

// Close ends the file.
func (r *Recorder) Close() error { return r.file.Close() }

// monotonic returns the monotonic clock of the machine. Go's own monotonic time has no
// value that processes could compare.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has it
	}
	return t.Nano()
}

// ReadHistory reads the events of all processes that have a file in the folder, in the
// order of time.
func ReadHistory(dir string) ([]Event, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all []Event
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		// A kill may have cut the last line. Its operation then has an unknown end.
		lines := bufio.NewScanner(bytes.NewReader(text[:bytes.LastIndexByte(text, '\n')+1]))
		lines.Buffer(nil, 1<<20)
		for n := 1; lines.Scan(); n++ {
			var e Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return nil, fmt.Errorf("%s, line %d: %w", name, n, err)
			}
			all = append(all, e)
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	slices.SortStableFunc(all, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return all, nil
}
