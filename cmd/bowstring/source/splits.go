package source

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"

	"bowstring/schema"
)

// splitWords are the names by which folders and files tell a split.
var splitWords = []string{"train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval",
	"evaluation"}

func isSplitWord(s string) bool { return splitRank(s) < len(splitWords) }

// splitRank orders splits as people list them: train, validation, test.
func splitRank(s string) int {
	for i, w := range splitWords {
		if strings.EqualFold(s, w) {
			return i
		}
	}
	return len(splitWords)
}

var (
	// train-00000-of-00002, the name that `datasets` gives a shard.
	shardOf = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._]*)-\d{3,}-of-\d{3,}(?:-[0-9a-f]+)?$`)
	// train, 000017 as in train-000017.tar, imagenet-train-0003
	words = regexp.MustCompile(`[A-Za-z]+`)
)

// splitOfFile returns the split that a file's path (relative, with slashes)
// tells, or "": by its name if it is that of a shard or holds a split's name as
// a word, else by a folder.
func splitOfFile(rel string) string {
	base := path.Base(rel)
	stem, _, _ := strings.Cut(base, ".")
	if m := shardOf.FindStringSubmatch(stem); m != nil {
		return m[1]
	}
	for _, w := range words.FindAllString(stem, -1) {
		if isSplitWord(w) {
			return w
		}
	}
	for dir := path.Dir(rel); dir != "." && dir != "/"; dir = path.Dir(dir) {
		// As a table says it that is written in parts: split=train.
		if name, ok := strings.CutPrefix(path.Base(dir), schema.SplitColumn+"="); ok && name != "" {
			return name
		}
		if isSplitWord(path.Base(dir)) {
			return path.Base(dir)
		}
	}
	return ""
}

// shard is a file of a source that has several.
type shard struct {
	path, rel string // rel with slashes
	split     string
	missing   string // why there is nothing to read, where the names of others say that there should be
}

// asMissing is the sample in the place of those of a missing shard.
func (s *shard) asMissing() Sample { return Sample{Key: s.rel, Split: s.split, Bad: s.missing} }

// arrangeShards sorts shards by split and name, and lists the splits they tell.
// If asked names one of them, the shards of others are left out.
func arrangeShards(shards []shard, asked string) (kept []shard, splits []string) {
	for i := range shards {
		if shards[i].missing == "" {
			shards[i].split = splitOfFile(shards[i].rel)
		}
		if s := shards[i].split; s != "" && !slices.Contains(splits, s) {
			splits = append(splits, s)
		}
	}
	slices.SortFunc(splits, func(a, b string) int { return cmp.Or(splitRank(a)-splitRank(b), strings.Compare(a, b)) })
	slices.SortStableFunc(shards, func(a, b shard) int {
		return cmp.Or(slices.Index(splits, a.split)-slices.Index(splits, b.split), strings.Compare(a.rel, b.rel))
	})
	if slices.Contains(splits, asked) {
		shards = slices.DeleteFunc(shards, func(s shard) bool { return s.split != asked })
	}
	return shards, splits
}
