package source

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// numbered is the name of a shard that says how many there are, such as
// train-00001-of-00004.parquet; some tools add a hash of the content.
var numbered = regexp.MustCompile(`^(.*)-(\d{3,9})-of-(\d{3,9})(?:-[0-9a-f]+)?(\..*)?$`)

// series are the shards whose names agree on all but their number.
type series struct {
	dir, stem, ending string
	digits            int    // of a number
	count             string // how many there are, as the names say
	total             int
	of                map[int][]shard
}

// name is that of a shard.
func (s *series) name(i int) string {
	return path.Join(s.dir, fmt.Sprintf("%s-%0*d-of-%s%s", s.stem, s.digits, i, s.count, s.ending))
}

// findSeries groups the shards whose names are numbered.
func findSeries(shards []shard) []*series {
	type key struct {
		dir, stem, ending, count string
		digits                   int
	}
	found := map[key]*series{}
	var all []*series
	for _, sh := range shards {
		dir, base := path.Split(sh.rel)
		m := numbered.FindStringSubmatch(base)
		if m == nil {
			continue
		}
		i, _ := strconv.Atoi(m[2])
		total, _ := strconv.Atoi(m[3])
		k := key{dir, m[1], m[4], m[3], len(m[2])}
		s := found[k]
		if s == nil {
			s = &series{dir, m[1], m[4], len(m[2]), m[3], total, map[int][]shard{}}
			found[k] = s
			all = append(all, s)
		}
		s.of[i] = append(s.of[i], sh)
	}
	return all
}

// lacking says which shards there should be and are not, of those that asked says were asked for (nil:
// all), and which number there is twice. It is nil if there is nothing wrong.
func (s *series) lacking(asked func(rel string) bool) []string {
	first := 0
	if _, zero := s.of[0]; !zero && len(s.of[s.total]) > 0 {
		first = 1 // numbered from 1
	}
	var names []string
	n := 0
	for i := first; i < first+min(s.total, maxExpanded) && (asked != nil || n < maxNamed); i++ {
		if len(s.of[i]) == 0 && (asked == nil || asked(s.name(i))) {
			if n++; n <= maxNamed {
				names = append(names, Quoted(path.Base(s.name(i))))
			}
		}
	}
	if asked == nil {
		n = s.total
		for i := range s.of {
			if i >= first && i < first+s.total {
				n--
			}
		}
	}
	var wrong []string
	if n > 0 {
		what := strings.Join(names, ", ")
		if n > maxNamed {
			what += fmt.Sprintf(" and %d more", n-maxNamed)
		}
		wrong = append(wrong, fmt.Sprintf("missing of %d shards, as the names of the others say: %s", s.total, what))
	}
	for _, i := range slices.Sorted(maps.Keys(s.of)) {
		switch same := s.of[i]; {
		case len(same) > 1:
			wrong = append(wrong, fmt.Sprintf("two files are number %d of %d: %s and %s", i, s.total,
				Quoted(path.Base(same[0].rel)), Quoted(path.Base(same[1].rel))))
		case i < first || i >= first+s.total:
			wrong = append(wrong, fmt.Sprintf("%s is none of %d shards", Quoted(path.Base(same[0].rel)), s.total))
		}
	}
	return wrong
}

// maxNamed is how many missing shards are named.
const maxNamed = 5

// addMissing adds to each series that lacks shards which asked says were asked for (nil:
// all), or has one twice, one more that says so.
func addMissing(shards []shard, asked func(rel string) bool) []shard {
	for _, s := range findSeries(shards) {
		wrong := s.lacking(asked)
		if wrong == nil {
			continue
		}
		rel := path.Join(s.dir, fmt.Sprintf("%s-*-of-%s%s", s.stem, s.count, s.ending))
		shards = append(shards, shard{rel: rel, split: splitOfFile(s.name(0)), missing: strings.Join(wrong, "; ")})
	}
	return shards
}
