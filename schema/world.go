package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// World is the number of ranks of a job, and which of them get the same samples. Ranks
// with the same samples are one data rank: a plan shares each global batch among data
// ranks.
type World struct {
	// Size is the number of ranks; 0 if Mesh is set.
	Size int64 `json:"size,omitempty"`
	// Replicate is how many consecutive ranks get the same samples; 0 means 1.
	Replicate int64 `json:"replicate,omitempty"`
	// Mesh is the dimensions of the ranks, such as "pp=2,dp=8,tp=4"; it excludes Size and
	// Replicate. From one rank to the next, the coordinate in the last dimension changes
	// first, as in torch's DeviceMesh. Ranks that differ only in dimensions outside of
	// [DataDims] get the same samples. It is text because the members of a JSON object
	// have no order.
	Mesh string `json:"mesh,omitempty"`
}

// Dimensions of a mesh. Ranks along DataDims get different samples; ranks along SameDims,
// which are context, pipeline and tensor parallel, get the same.
var (
	DataDims = []string{"dp", "dp_replicate", "dp_shard"}
	SameDims = []string{"cp", "pp", "tp"}
)

// check implements checker.
func (w *World) check(field string) error {
	path := "world." + field
	switch field {
	case "size":
		return checkRange(path, w.Size, 1, MaxWorld)
	case "replicate":
		return w.checkReplicate(path)
	case "mesh":
		return w.checkMesh(path)
	}
	return nil
}

// checkAll checks the world of a request.
func (w *World) checkAll() error {
	if w.Mesh == "" {
		if err := checkRange("world.size", w.Size, 1, MaxWorld); err != nil {
			return err
		}
	}
	return checkAll(w)
}

// checkReplicate checks Replicate: it must divide Size.
func (w *World) checkReplicate(path string) error {
	if w.Mesh != "" {
		return &FieldError{Field: path, Got: "both mesh and replicate", Want: "one of them: the mesh says which ranks get the same"}
	}
	if err := checkRange(path, w.Replicate, 1, max(w.Size, 1)); err != nil {
		return err
	}
	if w.Size%w.Replicate != 0 {
		return &FieldError{Field: path, Got: strconv.FormatInt(w.Replicate, 10),
			Want: fmt.Sprintf("a divisor of world.size, which is %d", w.Size)}
	}
	return nil
}

// checkMesh parses and checks Mesh.
func (w *World) checkMesh(path string) error {
	if w.Size != 0 {
		return &FieldError{Field: path, Got: "both size and mesh", Want: "one of them"}
	}
	if w.Mesh == "" {
		return &FieldError{Field: path, Got: `""`, Want: `dimensions such as "dp=2,tp=4"; or size in its place`}
	}
	ranks := int64(1)
	var seen []string
	for part := range strings.SplitSeq(w.Mesh, ",") {
		name, text, found := strings.Cut(part, "=")
		if !found || !slices.Contains(DataDims, name) && !slices.Contains(SameDims, name) {
			return badDim(path, part, name)
		}
		if slices.Contains(seen, name) {
			return &FieldError{Field: path + "." + name, Got: "it twice", Want: "each dimension once"}
		}
		seen = append(seen, name)
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 || n > MaxWorld || text != strconv.FormatInt(n, 10) {
			return &FieldError{Field: path + "." + name, Got: Quote(text),
				Want: fmt.Sprintf("an integer from 1 to %d", MaxWorld)}
		}
		if ranks *= n; ranks > MaxWorld {
			return &FieldError{Field: path, Got: Quote(w.Mesh), Want: fmt.Sprintf("at most %d ranks in all", MaxWorld)}
		}
	}
	return nil
}

// badDim is the error for a part of a mesh that is no dimension.
func badDim(path, part, name string) error {
	names := slices.Concat(DataDims, SameDims)
	want := `dimensions such as "dp=2,tp=4", the one that changes first last, of ` + strings.Join(names, ", ")
	switch near := Nearest(name, names); {
	case name == "ep":
		want += "; expert parallel ranks are data parallel ranks, too: leave it out"
	case near != "" && near != name:
		want += fmt.Sprintf(" (did you mean %q?)", near)
	}
	return &FieldError{Field: path, Got: Quote(part), Want: want}
}

// dim parses a dimension of a mesh that was checked.
func dim(part string) (size int64, data bool) {
	name, text, _ := strings.Cut(part, "=")
	size, _ = strconv.ParseInt(text, 10, 64)
	return max(size, 1), slices.Contains(DataDims, name)
}

// counts are the numbers of ranks and of data ranks.
func (w *World) counts() (ranks, data int64) {
	switch {
	case w == nil:
		return 1, 1
	case w.Mesh == "":
		return w.Size, w.Size / max(w.Replicate, 1)
	}
	ranks, data = 1, 1
	for part := range strings.SplitSeq(w.Mesh, ",") {
		n, splits := dim(part)
		ranks *= n
		if splits {
			data *= n
		}
	}
	return ranks, data
}

// String is the world in short: "8", "8/4" for 8 ranks in groups of 4 with the same
// samples, or the mesh.
func (w *World) String() string {
	switch {
	case w == nil:
		return "1"
	case w.Mesh != "":
		return w.Mesh
	case w.Replicate > 1:
		return fmt.Sprintf("%d/%d", w.Size, w.Replicate)
	}
	return strconv.FormatInt(w.Size, 10)
}

// WorldSize is the number of ranks.
func (r Request) WorldSize() int64 {
	ranks, _ := r.World.counts()
	return ranks
}

// DataRanks is the number of data ranks, and so of shares of a global batch.
func (r Request) DataRanks() int64 {
	_, data := r.World.counts()
	return data
}

// Replicas is how many ranks get the same samples.
func (r Request) Replicas() int64 {
	ranks, data := r.World.counts()
	return ranks / max(data, 1)
}

// DataRank is the share of a global batch that a rank gets, from 0 to DataRanks - 1: its
// coordinates in DataDims, in row-major order.
func (r Request) DataRank(rank int) int {
	w := r.World
	switch {
	case w == nil:
		return rank
	case w.Mesh == "":
		return rank / int(max(w.Replicate, 1))
	}
	left, _ := w.counts()
	at, data := int64(rank), int64(0)
	for part := range strings.SplitSeq(w.Mesh, ",") {
		n, splits := dim(part)
		left /= n
		if splits {
			data = data*n + at/left
		}
		at %= left
	}
	return int(data)
}

// along is a rank's coordinate in a dimension of the mesh, and the size of that
// dimension; 0 if there is no such dimension.
func (w *World) along(name string, rank int) (at, size int64) {
	if w == nil || w.Mesh == "" {
		return 0, 0
	}
	left, _ := w.counts()
	at = int64(rank)
	for part := range strings.SplitSeq(w.Mesh, ",") {
		n, _ := dim(part)
		left /= n
		if strings.HasPrefix(part, name+"=") {
			return at / left, n
		}
		at %= left
	}
	return 0, 0
}
