package tokens

import (
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// cell is a list of tokens that steps are applied to. Its memory is reused for the next
// row.
type cell struct {
	tokens []int64
	spare  []int64 // memory for the next step's tokens
	ends   []int   // ends of its pieces, in tokens; a cell that is not cut may have one
	filled []run   // ranges of padding, in order
}

// run is the range [from, to) of tokens.
type run struct{ from, to int }

// reset empties the cell.
func (c *cell) reset() { c.tokens, c.ends, c.filled = c.tokens[:0], c.ends[:0], c.filled[:0] }

// Values of the parameter long: what to do with lists that are too long.
const (
	tooLong = "error"
	cutOff  = "cut"
)

// checkLong fails for an unknown value of the parameter long.
func checkLong(long string) error {
	if long != tooLong && long != cutOff {
		return &schema.FieldError{Field: "long", Got: schema.Quote(long), Want: `"error" or "cut"`}
	}
	return nil
}

// concat joins the lists of several columns, or adds tokens before and after one: BOS at
// the beginning, Separator between columns, EOS at the end. nil adds none.
type concat struct {
	BOS       *int64 `json:"bos"`
	EOS       *int64 `json:"eos"`
	Separator *int64 `json:"separator"`
}

// next implements step. The added tokens must fit the type.
func (o *concat) next(f form) (form, error) {
	for name, token := range map[string]*int64{"bos": o.BOS, "separator": o.Separator, "eos": o.EOS} {
		if err := f.checkToken(name, token); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (o *concat) run(*cell) error { return nil } // making.row has joined the columns

// add appends a token, if it is not nil.
func (c *cell) add(token *int64) {
	if token != nil {
		c.tokens = append(c.tokens, *token)
	}
}

// shift moves tokens: place i gets the token of place i + by. Without fill the list
// becomes shorter; with fill, free places get it. Labels of next-token prediction are
// tokens shifted by 1.
type shift struct {
	By   *int64 `json:"by"`
	Fill *int64 `json:"fill"`
}

// next implements step. A shift of 0 is refused, because it is probably an error.
func (o *shift) next(f form) (form, error) {
	if o.By == nil || *o.By == 0 {
		return f, &schema.FieldError{Field: "by", Got: "nothing, or 0",
			Want: "by how many places: 1 leaves out the first token, -1 the last"}
	}
	if err := check("by", *o.By, -MaxLength, MaxLength); err != nil {
		return f, err
	}
	if err := f.checkToken("fill", o.Fill); err != nil {
		return f, err
	}
	return f.after(shifted, "Shift", stepOrder)
}

// run implements step. A list shorter than the shift becomes empty, or is only fill.
func (o *shift) run(c *cell) error {
	n, by := len(c.tokens), int(*o.By)
	gone := min(max(by, -by), n)
	if by > 0 {
		copy(c.tokens, c.tokens[gone:])
	} else if o.Fill != nil {
		copy(c.tokens[gone:], c.tokens[:n-gone])
	}
	if o.Fill == nil {
		c.tokens = c.tokens[:n-gone]
		return nil
	}
	empty := c.tokens[n-gone:]
	if by < 0 {
		empty = c.tokens[:gone]
	}
	for i := range empty {
		empty[i] = *o.Fill
	}
	return nil
}

// cut cuts a list into pieces of one length. The last piece may be shorter. With pieces,
// each cell has that number of pieces. Some of them may be empty.
type cut struct {
	Length int64  `json:"length"`
	Pieces *int64 `json:"pieces"`
	Long   string `json:"long"`
}

// next implements step. The fixed pieces of a cell together have at most MaxLength
// tokens.
func (o *cut) next(f form) (form, error) {
	if err := check("length", o.Length, 1, MaxLength); err != nil {
		return f, err
	}
	if err := checkLong(o.Long); err != nil {
		return f, err
	}
	f.cut, f.most = true, o.Length
	if o.Pieces == nil {
		if o.Long != tooLong {
			return f, &schema.FieldError{Field: "long", Got: "it without pieces", Want: "it left out, as no list is too long"}
		}
	} else if f.pieces = *o.Pieces; true {
		if err := check("pieces", f.pieces, 1, min(MaxPieces, MaxLength/o.Length)); err != nil {
			return f, err
		}
	}
	return f.after(split, "Split", stepOrder)
}

// run implements step. It only sets the ends of pieces. An empty list has no pieces,
// unless their number is fixed.
func (o *cut) run(c *cell) error {
	if o.Pieces == nil {
		for at := int(o.Length); at < len(c.tokens); at += int(o.Length) {
			c.ends = append(c.ends, at)
		}
		if len(c.tokens) > 0 {
			c.ends = append(c.ends, len(c.tokens))
		}
		return nil
	}
	if room := int(o.Length * *o.Pieces); len(c.tokens) > room {
		if o.Long == tooLong {
			return &schema.FieldError{Field: "pieces", Got: fmt.Sprintf("%d tokens", len(c.tokens)),
				Want: fmt.Sprintf(`at most %d, or long "cut"`, room)}
		}
		c.tokens = c.tokens[:room]
	}
	for i := range *o.Pieces {
		c.ends = append(c.ends, min(int((i+1)*o.Length), len(c.tokens)))
	}
	return nil
}

const (
	// Values of the parameter side.
	left  = "left"
	right = "right"
)

// pad fills each list, or each piece, up to a length or a multiple, on one side.
type pad struct {
	Length   *int64 `json:"length"`
	Multiple *int64 `json:"multiple"`
	Value    *int64 `json:"value"`
	Side     string `json:"side"`
	Long     string `json:"long"`

	pieces bool // it fills pieces, not lists
}

// next implements step. With length, all lists or pieces have one length afterwards.
func (o *pad) next(f form) (form, error) {
	switch {
	case (o.Length == nil) == (o.Multiple == nil):
		return f, &schema.FieldError{Field: "length", Got: "both length and multiple, or neither", Want: "one of them"}
	case o.Value == nil:
		return f, &schema.FieldError{Field: "value", Got: "nothing", Want: "the token that lists are filled up with"}
	case o.Side != left && o.Side != right:
		return f, &schema.FieldError{Field: "side", Got: schema.Quote(o.Side), Want: `"left" or "right"`}
	}
	if err := f.checkToken("value", o.Value); err != nil {
		return f, err
	}
	if err := checkLong(o.Long); err != nil {
		return f, err
	}
	// A varying number of pieces may be filled at most up to the length that they were
	// cut to. Otherwise few tokens could become very many.
	o.pieces = f.cut
	most := MaxLength / max(f.pieces, 1)
	if f.cut && f.pieces == 0 {
		most = f.most
	}
	if o.Length != nil {
		if err := check("length", *o.Length, 1, most); err != nil {
			return f, err
		}
		f.length = *o.Length
	} else {
		if o.Long != tooLong {
			return f, &schema.FieldError{Field: "long", Got: "it with multiple", Want: "it left out, as no list is too long"}
		}
		if err := check("multiple", *o.Multiple, 2, most); err != nil {
			return f, err
		}
	}
	return f.after(filled, "Pad", stepOrder)
}

// adds bounds how many tokens it adds to a list.
func (o *pad) adds() int64 {
	if o.Length != nil {
		return *o.Length
	}
	return *o.Multiple
}

// run implements step. It records the padding in c.filled for Mask.
func (o *pad) run(c *cell) error {
	if !o.pieces {
		c.ends = append(c.ends, len(c.tokens))
	}
	c.spare = c.spare[:0]
	from := 0
	for i, end := range c.ends {
		piece := c.tokens[from:end]
		from = end
		room := len(piece)
		if o.Length != nil {
			room = int(*o.Length)
		} else if m := int(*o.Multiple); room%m > 0 {
			room += m - room%m
		}
		if len(piece) > room {
			if o.Long == tooLong {
				return &schema.FieldError{Field: "length", Got: fmt.Sprintf("%d tokens", len(piece)),
					Want: fmt.Sprintf(`at most %d, or long "cut"`, room)}
			}
			piece = piece[:room]
		}
		empty := run{len(c.spare), len(c.spare) + room - len(piece)}
		if o.Side == right {
			empty = run{len(c.spare) + len(piece), len(c.spare) + room}
			c.spare = append(c.spare, piece...)
		}
		for range empty.to - empty.from {
			c.spare = append(c.spare, *o.Value)
		}
		if o.Side == left {
			c.spare = append(c.spare, piece...)
		}
		c.filled = append(c.filled, empty)
		c.ends[i] = len(c.spare)
	}
	c.tokens, c.spare = c.spare, c.tokens
	return nil
}

// mask replaces each token by 1 and padding by 0: the attention mask of Hugging Face
// transformers.
type mask struct{}

// next implements step.
func (o *mask) next(f form) (form, error) {
	f.dtype = arrow.PrimitiveTypes.Uint8
	return f.after(masked, "Mask", stepOrder)
}

// run implements step.
func (o *mask) run(c *cell) error {
	for i := range c.tokens {
		c.tokens[i] = 1
	}
	for _, r := range c.filled {
		clear(c.tokens[r.from:r.to])
	}
	return nil
}

// toDtype converts tokens to another type. A token that does not fit is an error.
type toDtype struct {
	DType string `json:"dtype"`

	lo, hi int64
}

// dtypes are the types of tokens.
var dtypes = []arrow.DataType{arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32,
	arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64}

// next implements step. Steps after it check their tokens against the new type.
func (o *toDtype) next(f form) (form, error) {
	i := slices.IndexFunc(dtypes, func(t arrow.DataType) bool { return t.Name() == o.DType })
	if i < 0 {
		var names []string
		for _, t := range dtypes {
			names = append(names, t.Name())
		}
		return f, &schema.FieldError{Field: "dtype", Got: schema.Quote(o.DType), Want: "one of " + schema.ShownList(names)}
	}
	was, most := range64(f.dtype)
	f.dtype = dtypes[i]
	if o.lo, o.hi = range64(f.dtype); o.lo <= was && most <= o.hi {
		o.lo, o.hi = math.MinInt64, math.MaxInt64 // all fit
	}
	return f, nil
}

// run implements step. It fails for a token that does not fit the type.
func (o *toDtype) run(c *cell) error {
	if o.lo == math.MinInt64 {
		return nil
	}
	for _, t := range c.tokens {
		if t < o.lo || t > o.hi {
			return &schema.FieldError{Field: "dtype", Got: fmt.Sprintf("the token %d", t),
				Want: fmt.Sprintf("%s, from %d to %d", o.DType, o.lo, o.hi)}
		}
	}
	return nil
}
