// Command shape counts what the house is made of: lines, packages, the largest types, references between the files of a
// package that run against the order of the files, the flags of serve, and what a DoGet goes through (doget.go). It
// informs, and fails nothing. Trees are compared by one run:
//
//	go run ./bench/shape [ROOT ...]
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// suites are folders whose Go files only tests and experiments use, besides _test.go files.
var suites = regexp.MustCompile(`^(internal|tests|bench|deploy|tools)/|/[a-z]*test/|^cmd/bowstring-lab/|` +
	`^cmd/bowstring/(simulate|links)/|^flight/hostile/|^spill/replay/|^fetch/store/(delay|cql/faults)/|` +
	`^fetch/members/memshared/|^cmd/bowstring/bench[a-z_]*\.go$`)

// lines counts lines of Go by what they are for.
type lines struct {
	Product int `json:"product"`
	Suites  int `json:"suites"` // fakes, experiments
	Tests   int `json:"tests"`
}

// size is how much a type has.
type size struct {
	Name    string `json:"name"`
	Fields  int    `json:"fields"`
	Methods int    `json:"methods"`
	Files   int    `json:"files"` // that its methods stand in
}

// references counts uses of package-level names between the files of a package.
type references struct {
	All     int `json:"all"`
	Against int `json:"against"`
}

// shape is what is counted.
type shape struct {
	Lines      lines                 `json:"lines"`
	Files      int                   `json:"files"`
	Packages   int                   `json:"packages"`
	Largest    []size                `json:"largest"`
	References map[string]references `json:"references"`
	Flags      int                   `json:"flags"`
	DoGet      *doGet                `json:"doget"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "shape:", err)
		os.Exit(1)
	}
}

// run prints the shapes of the trees that the command line names.
func run() error {
	roots := os.Args[1:]
	if len(roots) == 0 {
		roots = []string{"."}
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	for _, root := range roots {
		found, err := count(root)
		if err != nil {
			return err
		}
		found.Flags = flags(root)
		if found.DoGet, err = get(root); err != nil {
			fmt.Fprintln(os.Stderr, "what a DoGet goes through was not counted:", err)
		}
		if err := e.Encode(found); err != nil {
			return err
		}
	}
	return nil
}

// count reads all Go files below root.
func count(root string) (*shape, error) {
	s := &shape{References: map[string]references{}}
	folders := map[string][]*ast.File{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || name == "build" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n := bytes.Count(text, []byte("\n"))
		switch {
		case strings.HasSuffix(name, "_test.go"):
			s.Lines.Tests += n
			return nil
		case suites.MatchString(name):
			s.Lines.Suites += n
			return nil
		}
		s.Lines.Product += n
		s.Files++
		file, err := parser.ParseFile(fset, path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folders[filepath.Dir(name)] = append(folders[filepath.Dir(name)], file)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.Packages = len(folders)
	for folder, files := range folders {
		s.Largest = append(s.Largest, types(folder, files, fset)...)
		if top, _, _ := strings.Cut(folder, string(filepath.Separator)); top == "flight" || top == "fetch" {
			r := s.References[top]
			all, against := ordered(files)
			s.References[top] = references{All: r.All + all, Against: r.Against + against}
		}
	}
	slices.SortFunc(s.Largest, func(a, b size) int {
		return cmp.Or(cmp.Compare(b.Fields+b.Methods, a.Fields+a.Methods), cmp.Compare(a.Name, b.Name))
	})
	s.Largest = s.Largest[:min(5, len(s.Largest))]
	return s, nil
}

// types lists the structs of a package.
func types(folder string, files []*ast.File, fset *token.FileSet) []size {
	found := map[string]*size{}
	in := map[string]map[string]bool{}
	for _, file := range files {
		for _, d := range file.Decls {
			general, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				t, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				if st, ok := t.Type.(*ast.StructType); ok {
					found[t.Name.Name] = &size{Name: folder + "." + t.Name.Name, Fields: fields(st)}
				}
			}
		}
	}
	for _, file := range files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			name := receiver(f)
			if found[name] == nil {
				continue
			}
			found[name].Methods++
			if in[name] == nil {
				in[name] = map[string]bool{}
			}
			in[name][fset.Position(f.Pos()).Filename] = true
			found[name].Files = len(in[name])
		}
	}
	var all []size
	for _, s := range found {
		all = append(all, *s)
	}
	return all
}

// fields counts the fields of a struct, those of structs without a name within it included.
func fields(s *ast.StructType) int {
	n := 0
	for _, f := range s.Fields.List {
		n += max(1, len(f.Names))
		if within, ok := f.Type.(*ast.StructType); ok {
			n += fields(within)
		}
	}
	return n
}

// receiver is the name of the type that a method is of.
func receiver(f *ast.FuncDecl) string {
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// ordered counts the uses of one file's package-level names in another file, a use per pair of function and name, and
// how many of them run against the order of files that Eades, Lin and Smyth's heuristic finds: the files without a user
// first, those that use nothing last.
func ordered(files []*ast.File) (all, against int) {
	owner := map[string]int{}
	for i, file := range files {
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					owner[d.Name.Name] = i
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						owner[spec.Name.Name] = i
					case *ast.ValueSpec:
						for _, n := range spec.Names {
							owner[n.Name] = i
						}
					}
				}
			}
		}
	}
	uses := make([][]int, len(files))
	for i, file := range files {
		uses[i] = make([]int, len(files))
		for _, d := range file.Decls {
			for name := range names(d) {
				if to, ok := owner[name]; ok && to != i {
					uses[i][to]++
					all++
				}
			}
		}
	}
	order := eades(uses)
	for at, i := range order {
		for _, above := range order[:at] {
			against += uses[i][above]
		}
	}
	return all, against
}

// names are the identifiers in a declaration that may be of the package: neither selected from something, nor keys, nor
// declared within.
func names(d ast.Decl) map[string]bool {
	found, own := map[string]bool{}, map[string]bool{}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			maps.Copy(found, namesIn(n.X))
			return false
		case *ast.Field:
			for _, name := range n.Names {
				own[name.Name] = true
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, l := range n.Lhs {
					if id, ok := l.(*ast.Ident); ok {
						own[id.Name] = true
					}
				}
			}
		case *ast.Ident:
			found[n.Name] = true
		}
		return true
	})
	for name := range own {
		delete(found, name)
	}
	return found
}

func namesIn(x ast.Expr) map[string]bool {
	return names(&ast.GenDecl{Tok: token.VAR, Specs: []ast.Spec{&ast.ValueSpec{Values: []ast.Expr{x}}}})
}

// eades orders the nodes of a graph so that few edges run backwards: Eades, Lin, Smyth, "A fast and effective heuristic
// for the feedback arc set problem", 1993.
func eades(uses [][]int) []int {
	left := map[int]bool{}
	for i := range uses {
		left[i] = true
	}
	degree := func(i int) (out, in int) {
		for j := range left {
			if j != i {
				out += uses[i][j]
				in += uses[j][i]
			}
		}
		return out, in
	}
	var first, last []int
	for len(left) > 0 {
		best, most := -1, 0
		for _, i := range slices.Sorted(maps.Keys(left)) {
			out, in := degree(i)
			switch {
			case out == 0:
				best, most = i, -1<<62
			case best < 0 || (most != -1<<62 && out-in > most):
				best, most = i, out-in
			}
			if out == 0 {
				break
			}
		}
		if most == -1<<62 {
			last = append(last, best)
		} else {
			first = append(first, best)
		}
		delete(left, best)
	}
	slices.Reverse(last)
	return append(first, last...)
}

// flags counts what `bowstring serve` takes, as its help lists it; 0 where the tree cannot be built.
func flags(root string) int {
	for _, help := range []string{"--help-all", "--help"} { // a program that groups its flags shows some by --help
		cmd := exec.Command("go", "run", "./cmd/bowstring", "serve", help) //nolint:noctx // it ends by itself
		cmd.Dir = root
		if out, err := cmd.Output(); err == nil {
			return len(regexp.MustCompile(`(?m)^\s+(-\w, )?--[a-z]`).FindAll(out, -1))
		}
	}
	fmt.Fprintln(os.Stderr, "flags were not counted: the help cannot be had")
	return 0
}
