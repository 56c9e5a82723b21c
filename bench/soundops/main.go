// Soundops runs a list of operators on files of sound, as a server does, for tests and
// measurements beside other libraries.
//
//	soundops -steps '[{"Decode": {}}, {"Mono": {}}]' a.flac b.flac
//
// For each file it prints a JSON line: dims, what was drawn, or the error. With -out
// the results' bytes go to FOLDER/0, FOLDER/1 and so on. With -seconds it runs them
// again and again, and prints files for each CPU second.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"bowstring/fetch/operators/audio"
	"bowstring/fetch/operators/audio/sndfile"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

var (
	list    = flag.String("steps", "", "JSON list of operators")
	folder  = flag.String("out", "", "folder for the results' bytes")
	seconds = flag.Float64("seconds", 0, "how long to measure")
	seed    = flag.Uint64("seed", 0, "seed of draws; a file's position is its place in the list")
	samples = flag.Int64("samples", 1<<28, "most samples of a waveform")
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == sndfile.Command {
		if err := sndfile.Serve(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "soundops:", err)
		os.Exit(1)
	}
}

// line is what is printed for a file.
type line struct {
	Dims  []int           `json:"dims,omitempty"`
	Drawn []program.Drawn `json:"drawn,omitempty"`
	Cost  program.Cost    `json:"cost"`
	Error string          `json:"error,omitempty"`
	Kind  string          `json:"kind,omitempty"`
}

func run() error {
	var given []map[string]json.RawMessage
	if err := json.Unmarshal([]byte(*list), &given); err != nil {
		return fmt.Errorf("-steps: %w", err)
	}
	var steps []program.Step
	for _, s := range given {
		for name, params := range s {
			steps = append(steps, program.Step{Name: name, Params: params})
		}
	}
	p, err := audio.Compile(steps)
	if err != nil {
		return err
	}
	var files [][]byte
	for _, name := range flag.Args() {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files = append(files, b)
	}
	if *seconds > 0 {
		return measure(p, files)
	}
	out := json.NewEncoder(os.Stdout)
	for i, b := range files {
		l, bytes := one(p, b, i)
		if *folder != "" {
			if err := os.WriteFile(filepath.Join(*folder, strconv.Itoa(i)), bytes, 0o600); err != nil {
				return err
			}
		}
		if err := out.Encode(l); err != nil {
			return err
		}
	}
	return nil
}

func one(p program.Program, file []byte, position int) (line, []byte) {
	var result []byte
	cost, err := p.Cost(file, program.Limits{Samples: *samples, Bytes: math.MaxInt64})
	if err == nil {
		var o program.Outcome
		o, err = p.Run(context.Background(), file, program.Draws{Key: draw.Key{Seed: *seed, Position: uint64(position)}, Column: "audio"},
			func(n int) []byte { result = make([]byte, n); return result })
		if err == nil {
			return line{Dims: o.Dims, Drawn: o.Drawn, Cost: cost}, result
		}
	}
	l := line{Error: err.Error()}
	switch {
	case errors.Is(err, program.ErrTooLarge):
		l.Kind = "too large"
	case errors.Is(err, program.ErrDamaged):
		l.Kind = "damaged"
	}
	return l, nil
}

// measure prints the best of rounds: others use the machine, too.
func measure(p program.Program, files [][]byte) error {
	var result []byte
	alloc := func(n int) []byte {
		if cap(result) < n {
			result = make([]byte, n)
		}
		return result[:n]
	}
	best := 0.0
	for end := time.Now().Add(time.Duration(*seconds * float64(time.Second))); time.Now().Before(end); {
		start, elsewhere := used(), time.Duration(0)
		for i, b := range files {
			if _, err := p.Cost(b, program.Limits{Samples: *samples, Bytes: math.MaxInt64}); err != nil {
				return err
			}
			o, err := p.Run(context.Background(), b, program.Draws{Key: draw.Key{Position: uint64(i)}, Column: "audio"}, alloc)
			if err != nil {
				return err
			}
			elsewhere += o.Elsewhere
		}
		best = max(best, float64(len(files))/(used()-start+elsewhere).Seconds())
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"per_cpu_second": best, "engine": audio.Engine()})
}

// used is the CPU time of this process.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
