// Command apply carries out operators on files, for tests that compare pixels: it reads
// a request a line, and answers each with a line, and the bytes in a file.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images"
	"bowstring/fetch/operators/program"
)

type step struct {
	Name   string          `json:"name"`
	Params json.RawMessage `json:"params"`
}

type request struct {
	In    string `json:"in"`
	Out   string `json:"out"`
	Steps []step `json:"steps"`
	Mask  bool   `json:"mask"`
	Key   draw.Key
}

type answer struct {
	Dims  []int           `json:"dims"`
	Axes  string          `json:"axes"`
	Drawn []program.Drawn `json:"drawn"`
	Error string          `json:"error"`
}

func carryOut(r *request) (a answer, err error) {
	cell, err := os.ReadFile(r.In)
	if err != nil {
		return a, err
	}
	steps := make([]program.Step, len(r.Steps))
	for i, s := range r.Steps {
		steps[i] = program.Step(s)
	}
	compile := images.Compile
	if r.Mask {
		compile = images.CompileMask
	}
	p, err := compile(steps)
	if err != nil {
		return a, err
	}
	cost, err := p.Cost(cell, program.Limits{})
	if err != nil {
		return a, err
	}
	var result []byte
	outcome, err := p.Run(context.Background(), cell, program.Draws{Key: r.Key, Column: "image"}, func(n int) []byte {
		result = make([]byte, n)
		for i := range result {
			result[i] = 0xA5 // what is not written is seen
		}
		return result
	})
	if err == nil && cost.Result.Int64() < int64(len(result)) {
		err = fmt.Errorf("%d bytes, bound by %v", len(result), cost.Result)
	}
	if err != nil {
		return a, err
	}
	a.Dims, a.Drawn, a.Axes = outcome.Dims, outcome.Drawn, p.Result().Axes
	return a, os.WriteFile(r.Out, result, 0o600)
}

func run() error {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return err
		}
		a, err := carryOut(&r)
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
