package hostile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/fetch/ingest"
	"bowstring/fetch/lineage"
	"bowstring/fetch/store/local"
	"bowstring/flight"
	"bowstring/flight/usage"
	"bowstring/schema"
)

// The server under attack is this test's binary again, in a process of its own
// whose memory has a limit.
const (
	serveEnv    = "BOWSTRING_HOSTILE_SERVE"
	memoryLimit = 1 << 30 // what it may take; the limit of Go's runtime is a tenth lower
	dataLimit   = 3 << 30 // where the kernel ends it: also what is mapped and not touched counts

	drainTimeout = 5 * time.Second

	rows      = 2200
	blobBytes = 4000
)

// blob is the image at a position.
func blob(position int64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%08d", position), blobBytes/8)
}

// serveUntilSignal serves the store at dir until its input ends.
func serveUntilSignal(dir string) error {
	if err := syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: dataLimit, Max: dataLimit}); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	store, err := local.Open(dir, local.Options{Logger: log})
	if err != nil {
		return err
	}
	record, err := lineage.Open(lineage.Options{Dir: dir + "-lineage", Logger: log})
	if err != nil {
		return err
	}
	engine, err := fetch.NewEngine(store, fetch.Options{
		Lineage: record, WindowBytes: 128 << 20, Memory: admission.Limits{Uploads: 256 << 20}, Logger: log,
	})
	if err != nil {
		return err
	}
	book, err := usage.Open(usage.Options{Dir: dir + "-usage", Logger: log})
	if err != nil {
		return err
	}
	server := flight.New(engine, flight.Options{
		Usage: book, MaxMessageBytes: 64 << 20, RequestTimeout: 2 * time.Second, MessageTimeout: 2 * time.Second,
		Ledger: engine.Ledger(), DrainTimeout: drainTimeout, Logger: log,
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	fmt.Println(l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = server.Shutdown(context.Background()) // what is cut off was the attackers'
	if err := <-served; err != nil {
		return err
	}
	return errors.Join(engine.Close(), record.Close(), book.Close(), store.Close())
}

// fillStore makes the honest client's dataset.
func fillStore(dir string) (err error) {
	store, err := local.Open(dir, local.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := store.Close(); err == nil {
			err = cerr
		}
	}()
	meta := []arrow.Field{{Name: "file_name", Type: arrow.BinaryTypes.String}}
	s, err := schema.NewSchema(meta, []arrow.Field{schema.BlobField("image", schema.MediaImage, false)})
	if err != nil {
		return err
	}
	ctx := context.Background()
	w, err := ingest.New(ctx, store, ingest.Options{Dataset: Dataset, Schema: s})
	if err != nil {
		return err
	}
	defer w.Close()
	names := array.NewStringBuilder(memory.DefaultAllocator)
	defer names.Release()
	ids := make([]schema.ID, rows)
	blobs := make([][]byte, rows)
	for i := range rows {
		names.Append(fmt.Sprintf("%06d.jpg", i))
		ids[i] = schema.SampleID(Dataset, strconv.Itoa(i))
		blobs[i] = blob(int64(i))
	}
	rec := array.NewRecord(arrow.NewSchema(meta, nil), []arrow.Array{names.NewArray()}, rows)
	defer rec.Release()
	if err := w.Write(ctx, "", ids, rec, [][][]byte{blobs}); err != nil {
		return err
	}
	_, _, err = w.Commit(ctx)
	return err
}

// victim is a server in a process of its own.
type victim struct {
	cmd  *exec.Cmd
	addr string
	log  bytes.Buffer // read after the process has ended
	stop func() error // ends it in good order
}

func startVictim(t *testing.T) *victim {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := fillStore(dir); err != nil {
		t.Fatal(err)
	}
	v := &victim{cmd: exec.Command(os.Args[0])}
	v.cmd.Env = append(os.Environ(), serveEnv+"="+dir, fmt.Sprintf("GOMEMLIMIT=%d", memoryLimit/10*9))
	v.cmd.Stderr = &v.log
	in, err := v.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var ended error
	over := false
	v.stop = func() error {
		if !over {
			over = true
			_ = in.Close()
			ended = v.cmd.Wait()
		}
		return ended
	}
	t.Cleanup(func() {
		if err := v.stop(); err != nil {
			t.Errorf("the server ended: %v", err)
		}
		if t.Failed() {
			log := v.log.String()
			t.Logf("the server's log:\n%s", log[:min(len(log), 20_000)])
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	v.addr = strings.TrimSpace(line)
	return v
}

// peak is the most resident memory of the server, without files.
func (v *victim) resident(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("the server has no memory")
	return 0
}
