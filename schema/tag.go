package schema

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// CheckTag reports a FieldError unless tag is fit for a tag: a name as CheckName
// takes it that is not digits alone, as those are the numbers of snapshots.
// field is what the error calls it.
func CheckTag(field, tag string) error {
	if tag != "" && strings.Trim(tag, "0123456789") == "" {
		return &FieldError{Field: field, Got: Quote(tag),
			Want: "a name that is not digits alone: those are the numbers of snapshots"}
	}
	return CheckName(field, tag)
}

// ParseSnapshotName reads a dataset as people write it: NAME for its newest
// snapshot, NAME@NUMBER for one by number, NAME@TAG for the one that has a tag.
// Of number and tag at most one is given. field is what errors call the text.
func ParseSnapshotName(field, text string) (dataset string, number int64, tag string, err error) {
	dataset, version, pinned := strings.Cut(text, "@")
	if err := CheckName(field, dataset); err != nil {
		return "", 0, "", err
	}
	if !pinned {
		return dataset, 0, "", nil
	}
	if strings.Trim(version, "0123456789") == "" {
		number, err := strconv.ParseInt(version, 10, 64)
		if err != nil || number < 1 {
			return "", 0, "", &FieldError{Field: field, Got: Quote(text),
				Want: fmt.Sprintf("a snapshot number from 1 to %d or a tag after the @, as in %s@1",
					int64(math.MaxInt64), dataset)}
		}
		return dataset, number, "", nil
	}
	if CheckTag(field, version) != nil {
		return "", 0, "", &FieldError{Field: field, Got: Quote(text), Want: fmt.Sprintf(
			"after the @ a snapshot number, or a tag of 1 to %d letters, digits, '.', '_' and '-', the first a letter "+
				"or digit", MaxNameLen)}
	}
	return dataset, 0, version, nil
}

// FormatSnapshotName writes what ParseSnapshotName reads.
func FormatSnapshotName(dataset string, number int64, tag string) string {
	switch {
	case tag != "":
		return dataset + "@" + tag
	case number != 0:
		return fmt.Sprintf("%s@%d", dataset, number)
	}
	return dataset
}

// checkSnapshotOrTag checks a tag that a request gives beside the number, which
// must not be given as well.
func checkSnapshotOrTag(number int64, tag string) error {
	if number != 0 && tag != "" {
		return &FieldError{Field: "tag", Got: fmt.Sprintf("it and snapshot %d", number), Want: "one of the two"}
	}
	return CheckTag("tag", tag)
}
