package source

import "path/filepath"

// joined finds the rows of metadata that name files of a folder.
type joined struct {
	root  string
	files string          // of metadata, for messages
	rows  map[string]int  // by file, as it is named
	twice map[string]bool // files that two rows name
	names []string        // by row
	alike map[string]int  // rows by canonical name, of those that may be written otherwise; or severalRows
	used  map[int]string  // files by the rows that were found for them
}

// severalRows stands for rows that name one file, each in another way.
const severalRows = -1

func newJoined(root string, files []string) *joined {
	return &joined{root: root, files: quotedList(files), rows: map[string]int{}, twice: map[string]bool{},
		alike: map[string]int{},
		used:  map[int]string{}}
}

// add adds the next row, which names a file, and canonically so.
func (j *joined) add(file, canonical string) {
	row := len(j.names)
	j.names = append(j.names, file)
	_, had := j.rows[file]
	j.twice[file] = j.twice[file] || had
	j.rows[file] = row
	if canonical == file && ascii(file) {
		return
	}
	if other, ok := j.alike[canonical]; ok && j.names[max(other, 0)] != file {
		row = severalRows
	}
	j.alike[canonical] = row
}

// find returns the row that names a file, or says why there is none. A row that names another file just as that is
// written is not taken for one that is written otherwise.
func (j *joined) find(file string) (row int, why string) {
	row, ok := j.rows[file]
	if !ok {
		row, ok = j.alike[canonical(file)]
		if !ok || row == severalRows || !missing(filepath.Join(j.root, filepath.FromSlash(j.names[row]))) {
			return -1, "no row of the metadata (" + j.files + ") names it"
		}
	}
	if j.twice[j.names[row]] {
		return row, "two rows of the metadata name it"
	}
	if other, used := j.used[row]; used && other != file {
		return -1, "the row of the metadata that names it names " + Quoted(other) + ", too"
	}
	j.used[row] = file
	return row, ""
}
