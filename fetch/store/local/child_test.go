package local

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"bowstring/fetch/store"
	"bowstring/internal/leaktest"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// The test binary runs itself as another process, to be killed.
const (
	childMode = "BOWSTRING_TEST_CHILD"
	childDir  = "BOWSTRING_TEST_DIR"
	childSeed = "BOWSTRING_TEST_SEED"
)

func TestMain(m *testing.M) {
	mode := os.Getenv(childMode)
	if mode == "" {
		leaktest.Main(m)
		return
	}
	var err error
	switch mode {
	case "import":
		err = childImport(context.Background())
	case "hold":
		err = childHold()
	case "rebuild":
		err = childRebuild(context.Background())
	default:
		err = errors.New("unknown mode")
	}
	fmt.Fprintln(os.Stderr, "child:", err)
	os.Exit(3)
}

// testOptions make segments small, so that a short test has many, and keep the
// log quiet.
func testOptions() Options {
	return Options{SegmentBytes: 512 << 10, Logger: slog.New(slog.DiscardHandler)}
}

var madeBlobs sync.Map // of sources, by name

// sourceBlobs are the blobs of the snapshot with that source. Snapshots share some of them. The slice must not be
// changed.
func sourceBlobs(source string) [][]byte {
	if made, ok := madeBlobs.Load(source); ok {
		return made.([][]byte)
	}
	blobs := makeBlobs(source)
	madeBlobs.Store(source, blobs)
	return blobs
}

func makeBlobs(source string) [][]byte {
	blobs := make([][]byte, 12)
	for i := range blobs {
		name := source
		if i%4 == 0 {
			name = "shared"
		}
		var seed [32]byte
		copy(seed[:], name)
		binary.LittleEndian.PutUint32(seed[28:], uint32(i))
		r := rand.New(rand.NewChaCha8(seed))
		blobs[i] = make([]byte, r.IntN(60_000))
		for j := 0; j+8 <= len(blobs[i]); j += 8 {
			binary.LittleEndian.PutUint64(blobs[i][j:], r.Uint64())
		}
	}
	return blobs
}

// importSource commits the blobs of a source as the newest snapshot.
func importSource(ctx context.Context, s *Store, dataset, source string,
	progress func(string)) (_ *schema.Snapshot, err error) {
	in, err := s.Begin(ctx, dataset)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	snap, err := storetest.Put(ctx, reportingIngest{in, progress}, sourceBlobs(source), 5)
	if err != nil {
		return nil, err
	}
	snap.Source = source
	if newest, err := s.Snapshot(ctx, dataset, 0); err == nil {
		snap.Parent = newest.Number
	} else if !errors.Is(err, schema.ErrNotFound) {
		return nil, err
	}
	progress("commit")
	return in.Commit(ctx, snap)
}

// reportingIngest reports each put.
type reportingIngest struct {
	store.Ingest
	progress func(string)
}

func (in reportingIngest) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	ref, err := in.Ingest.Put(ctx, data)
	in.progress("put")
	return ref, err
}

// childImport imports, drops and collects until it is killed, and prints each step on a line of its own.
func childImport(ctx context.Context) error {
	say := func(line string) { fmt.Println(line) }
	s, err := Open(os.Getenv(childDir), testOptions())
	if err != nil {
		return err
	}
	say("open")
	for i := 0; ; i++ {
		snap, err := importSource(ctx, s, "d", fmt.Sprintf("%s/%d", os.Getenv(childSeed), i), say)
		if err != nil {
			return err
		}
		say(fmt.Sprint("committed ", snap.Number))
		if i%2 == 1 {
			list, err := s.Datasets(ctx)
			if err != nil {
				return err
			}
			for _, number := range list[0].Snapshots {
				if number < snap.Number-1 {
					say("drop")
					if err := s.Drop(ctx, "d", number); err != nil {
						return err
					}
				}
			}
			say("gc")
			if _, err := s.GC(ctx, store.GCOptions{}, nil); err != nil {
				return err
			}
			say("collected")
		}
	}
}

// childHold opens the store and keeps it until its input ends.
func childHold() error {
	s, err := Open(os.Getenv(childDir), testOptions())
	if err != nil {
		return err
	}
	fmt.Println("open")
	if err := s.SetAddr("grpc://127.0.0.1:7777"); err != nil {
		return err
	}
	fmt.Println("serving")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// childRebuild rebuilds the store, and kills itself at the step with the number of the seed, from 0.
func childRebuild(ctx context.Context) error {
	left, err := strconv.Atoi(os.Getenv(childSeed))
	if err != nil {
		return err
	}
	opts := RebuildOptions{Logger: testOptions().Logger, step: func(name string) {
		if left--; left < 0 {
			fmt.Println(name)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // which does not return
		}
	}}
	_, err = Rebuild(ctx, os.Getenv(childDir), opts)
	fmt.Println("rebuilt")
	return errors.Join(err, syscall.Kill(os.Getpid(), syscall.SIGKILL))
}

type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	stdin io.Closer
	errs  strings.Builder
}

func startChild(t *testing.T, mode, dir string, seed int) *child {
	t.Helper()
	c := &child{cmd: exec.CommandContext(t.Context(), os.Args[0])}
	c.cmd.Env = append(os.Environ(), childMode+"="+mode, childDir+"="+dir, childSeed+"="+strconv.Itoa(seed))
	c.cmd.Stderr = &c.errs
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdin, c.lines = stdin, bufio.NewScanner(stdout)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// until reads lines up to one that stop accepts.
func (c *child) until(t *testing.T, stop func(line string) bool) {
	t.Helper()
	for c.lines.Scan() {
		if stop(c.lines.Text()) {
			return
		}
	}
	_ = c.cmd.Wait() // it failed, and has said why
	t.Fatalf("the child ended early: %s", c.errs.String())
}

// kill ends the child as kill -9 does, and reads its remaining output.
func (c *child) kill(t *testing.T, each func(line string)) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for c.lines.Scan() {
		each(c.lines.Text())
	}
	_ = c.cmd.Wait() // "signal: killed"
	if c.errs.Len() > 0 {
		t.Fatalf("the child failed before it was killed: %s", c.errs.String())
	}
}
