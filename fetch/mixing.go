package fetch

import (
	"context"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/plan"
	"bowstring/schema"
)

// Mixing says how well the order of a job mixes classes.
type Mixing struct {
	// ChiSquare is that of the classes of runs of Run samples, per degree of freedom. A global shuffle has 1.
	ChiSquare float64 `json:"chi2_per_df"`
	Run       int64   `json:"run"`
	Looked    int64   `json:"looked"`  // samples
	By        string  `json:"by"`      // what gives the classes: "column NAME", "directory" or "object"
	Classes   int     `json:"classes"` // that were seen
	// BlockRows and Blocks are those of the shuffle.
	BlockRows int64 `json:"block_rows"`
	Blocks    int64 `json:"blocks"`
}

// From a ChiSquare of mixesPoorly on an order mixes poorly, and up to mixesWell as well as a global shuffle: chance alone
// has it differ by a few hundredths.
const mixesPoorly, mixesWell = 2, 1.25

// String says it to people.
func (m *Mixing) String() string {
	how := "as well as a global shuffle"
	switch {
	case m.ChiSquare >= mixesPoorly:
		how = "poorly: take a global shuffle, or more and smaller blocks"
	case m.ChiSquare >= mixesWell:
		how = "nearly as well as a global shuffle"
	}
	return fmt.Sprintf("a shuffle of blocks of %d samples, %d together, mixes %s (by %s, χ²/df %.1f; a global shuffle has 1)",
		m.BlockRows, m.Blocks, how, m.By, m.ChiSquare)
}

const (
	// mixRuns is how many runs are compared.
	mixRuns = 8
	// mixSparse is how many samples of a run are looked at where the manifest is not in memory.
	mixSparse = 512
)

// labelNames are what columns of classes are called, where the schema does not say which those are.
var labelNames = []string{"label", "labels", "class", "cls", "category", "target", "class_name", "label_name"}

// Mixing measures how well the order of a job mixes classes, from a sample of the order.
// Classes are the values of a column that the caller may see, or else directories, or else
// the objects of the blobs. It reads pages of the manifest, and no blob, and returns the
// same result each time. It is nil if the job's shuffle is not one of blocks, or if samples
// have no classes.
func (e *Engine) Mixing(ctx context.Context, j *Job) (*Mixing, error) {
	shuffle := j.Request().Shuffle
	if !shuffle.InBlocks() || j.Alone() == nil {
		return nil, nil //nolint:nilnil // that there is nothing to say is no error
	}
	most := int64(plan.MixWindow)
	if !j.Manifest().Resident() {
		most = mixSparse
	}
	runs, run := plan.Windows(j.Plan(), mixRuns, most)
	if len(runs) == 0 {
		return nil, nil //nolint:nilnil // likewise
	}
	var all []int64
	for _, list := range runs {
		all = append(all, list...)
	}
	for _, by := range classesOf(j) {
		if by.column >= 0 && j.Hides(j.Manifest().Snapshot().Schema.Field(by.column).Name) {
			continue
		}
		classes, seen, err := by.read(ctx, j, all)
		if err != nil {
			return nil, err
		}
		// A value that nearly each sample has alone is no class.
		if seen < 2 || seen > len(all)/4 {
			continue
		}
		of := make([][]int, len(runs))
		for i, list := range runs {
			for _, position := range list {
				of[i] = append(of[i], classes[position])
			}
		}
		x, ok := plan.ChiSquare(of)
		if !ok {
			continue
		}
		// The part of chi-square beyond chance grows with the length of the runs.
		x = 1 + (x-1)*float64(run)/float64(len(runs[0]))
		return &Mixing{ChiSquare: math.Round(100*max(x, 0)) / 100, Run: run, Looked: int64(len(all)), By: by.name, Classes: seen,
			BlockRows: shuffle.BlockRows, Blocks: shuffle.Blocks}, nil
	}
	return nil, nil //nolint:nilnil // likewise
}

// classing is a way to assign classes to samples.
type classing struct {
	name   string
	column int // of the schema; -1: what is in no column
	class  func(p *schema.Page, row int) string
}

// classesOf lists what may give the classes of a job's samples, the best first.
func classesOf(j *Job) (list []classing) {
	s := j.Manifest().Snapshot().Schema
	value := func(i int) func(p *schema.Page, row int) string {
		return func(p *schema.Page, row int) string { return p.Column(i).ValueStr(row) }
	}
	plain := func(i int) bool {
		switch s.Field(i).Type.ID() {
		case arrow.BOOL, arrow.STRING, arrow.LARGE_STRING, arrow.DICTIONARY:
			return true
		}
		return arrow.IsInteger(s.Field(i).Type.ID())
	}
	for i, f := range s.Fields() {
		if schema.Classes(f) != nil && plain(i) {
			list = append(list, classing{"column " + f.Name, i, value(i)})
		}
	}
	for i, f := range s.Fields() {
		if schema.Classes(f) == nil && slices.Contains(labelNames, strings.ToLower(f.Name)) && plain(i) {
			list = append(list, classing{"column " + f.Name, i, value(i)})
		}
	}
	if i := slices.IndexFunc(s.Fields(), func(f arrow.Field) bool { return f.Name == schema.PathColumn }); i >= 0 {
		list = append(list, classing{"directory", i, func(p *schema.Page, row int) string {
			return path.Dir(p.Column(i).ValueStr(row))
		}})
	}
	if columns := j.Projection().BlobColumns(); len(columns) > 0 {
		list = append(list, classing{"object", -1, func(p *schema.Page, row int) string {
			ref, ok := p.Blob(columns[0], row)
			at, in := schema.ParseObjectAddress(ref.Key)
			if !ok || !in || ref.Hashed() {
				return ""
			}
			return string(append(at.Prefix[:], byte(at.Object>>24), byte(at.Object>>16), byte(at.Object>>8), byte(at.Object)))
		}})
	}
	return list
}

// read returns the classes of samples, numbered in the order of occurrence, and their number.
func (c *classing) read(ctx context.Context, j *Job, positions []int64) (of map[int64]int, seen int, err error) {
	of = make(map[int64]int, len(positions))
	numbers := map[string]int{}
	err = j.Alone().Visit(ctx, positions, func(start int64, p *schema.Page, wanted []int64) error {
		return schema.Guard(func() error {
			for _, position := range wanted {
				class := c.class(p, int(position-start))
				n, ok := numbers[class]
				if !ok {
					n = len(numbers)
					numbers[strings.Clone(class)] = n
				}
				of[position] = n
			}
			return nil
		})
	})
	return of, len(numbers), err
}
