package sndfile

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// process is the server's end of a process that decodes. It belongs to one call at a time.
// The library is C code for untrusted files. A fault in it ends this process and not the
// server.
type process struct {
	cmd    *exec.Cmd
	to     *os.File
	from   *os.File
	read   *bufio.Reader // of from
	chunk  []float32     // samples on their way out of the pipe
	detail string        // version of its library
}

const (
	startTime = 10 * time.Second // for its first message
	// The pipe with the samples is larger than the default, so that the process need not
	// wait for each read.
	pipeBytes  = 1 << 20 // capacity of the pipe with the samples
	chunkSize  = 1 << 15 // samples of all channels read from the pipe at once
	helloBytes = 4096    // maximum of its first message
)

// start starts a binary to decode, and waits until it has reported its library. A missing
// library is no error: then missing says why. The environment has only what the loader of
// libraries needs. The directory is the root, so that no file system stays busy.
func start(binary, library string) (p *process, missing string, err error) {
	if strings.ContainsRune(library, filepath.Separator) {
		if library, err = filepath.Abs(library); err != nil {
			return nil, "", err
		}
	}
	theirIn, to, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		return nil, "", errors.Join(err, theirIn.Close(), to.Close())
	}
	widen(to)
	widen(from)
	p = &process{to: to, from: from, read: bufio.NewReaderSize(from, helloBytes)}
	p.cmd = exec.Command(binary, Command) //nolint:gosec,noctx // the binary that runs; its end is waited for in end
	p.cmd.Dir, p.cmd.Stdin, p.cmd.Stdout = "/", theirIn, theirOut
	p.cmd.Env = []string{theirs + "=" + library, "LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH"), "GOMAXPROCS=2"}
	p.cmd.SysProcAttr = apart() // a terminal's interrupt must not reach it
	// Their ends are closed here in any case. Otherwise the end of the process would not be
	// seen.
	err = errors.Join(p.cmd.Start(), theirIn.Close(), theirOut.Close())
	if p.cmd.Process == nil {
		return nil, "", errors.Join(fmt.Errorf("starting a process: %w", err), to.Close(), from.Close())
	}
	if err != nil {
		return nil, "", p.end(err)
	}
	// The first message comes before any file, so a missing library is found at the start.
	hello, err := p.hello()
	switch {
	case err != nil:
		return nil, "", p.end(err)
	case hello[0] == '-':
		_ = p.end(nil)
		return nil, hello[1:], nil
	}
	p.detail = hello[1:]
	return p, "", nil
}

// hello reads the first line: + and a version, or - and why there is no library. startTime
// bounds the wait for a process that hangs while it loads the library.
func (p *process) hello() (string, error) {
	if err := p.from.SetReadDeadline(time.Now().Add(startTime)); err != nil {
		return "", err
	}
	line, err := p.read.ReadSlice('\n')
	if err != nil {
		return "", fmt.Errorf("it does not say what library it has: %w", err)
	}
	if len(line) < 2 || line[0] != '+' && line[0] != '-' {
		return "", fmt.Errorf("it says %q instead of what library it has", line)
	}
	return string(line[:len(line)-1]), nil
}

// end kills the process, waits for it, and adds its exit status to err. It is called once.
// SIGKILL, because a library that hangs does not answer anything else.
func (p *process) end(err error) error {
	_ = p.cmd.Process.Kill()
	_ = p.to.Close()
	_ = p.from.Close()
	state := p.cmd.Wait()
	if state == nil {
		state = errors.New("exit status 0")
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (%w)", err, state)
}

// ask makes the process decode a file. After an error the process cannot be used any
// more. The end of ctx makes reading and writing fail.
func (p *process) ask(ctx context.Context, file []byte, q request, out [][]float32,
	until time.Time) (a answer, err error) {
	if err := errors.Join(p.to.SetWriteDeadline(until), p.from.SetReadDeadline(until)); err != nil {
		return answer{}, err
	}
	// The callback may still run when ask returns: the deferred function waits for it.
	ended := make(chan struct{})
	// A deadline in the past makes a pending read or write return at once.
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		past := time.Unix(1, 0)
		_, _ = p.to.SetWriteDeadline(past), p.from.SetReadDeadline(past)
	})
	defer func() {
		if !stop() {
			<-ended
			if err == nil { // expired deadlines would break the next file
				err = context.Cause(ctx)
			}
		}
	}()
	if err := binary.Write(p.to, binary.LittleEndian, q); err != nil {
		return answer{}, err
	}
	if _, err := p.to.Write(file); err != nil {
		return answer{}, err
	}
	if err := binary.Read(p.read, binary.LittleEndian, &a); err != nil {
		return answer{}, err
	}
	if a.Frames > q.Frames {
		return answer{}, fmt.Errorf("it gives %d frames of %d", a.Frames, q.Frames)
	}
	// Samples arrive interleaved and are sorted by channel in pieces.
	for done := 0; done < int(a.Frames); {
		n := min(int(a.Frames)-done, max(chunkSize/len(out), 1))
		if cap(p.chunk) < n*len(out) {
			p.chunk = make([]float32, max(chunkSize, n*len(out)))
		}
		x := p.chunk[:n*len(out)]
		if _, err := io.ReadFull(p.read, asBytes(x)); err != nil {
			return answer{}, err
		}
		for c, to := range out {
			for i := range n {
				to[done+i] = x[i*len(out)+c]
			}
		}
		done += n
	}
	return a, nil
}
