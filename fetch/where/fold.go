package where

import (
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
)

// foldTimes replaces date("…") and duration("…") by their values.
func foldTimes(text string, root *ast.Node) error {
	f := &fold{text: text}
	ast.Walk(root, f)
	return f.err
}

type fold struct {
	text string
	err  error
}

// Visit implements ast.Visitor.
func (f *fold) Visit(node *ast.Node) {
	name, args := callOf(*node)
	if f.err != nil || name != "date" && name != "duration" {
		return
	}
	values := make([]any, len(args))
	for i, a := range args {
		s, ok := a.(*ast.StringNode)
		if !ok {
			return
		}
		values[i] = s.Value
	}
	v, err := builtin.Builtins[builtin.Index[name]].Func(values...)
	if err != nil {
		f.err = fail(f.text, *node, "%s: %v", name, err)
		return
	}
	ast.Patch(node, &ast.ConstantNode{Value: v})
}

// callOf is the function that a node calls, "" if it is no call.
func callOf(n ast.Node) (name string, args []ast.Node) {
	switch n := n.(type) {
	case *ast.BuiltinNode:
		return n.Name, n.Arguments
	case *ast.CallNode:
		if id, ok := n.Callee.(*ast.IdentifierNode); ok {
			return id.Value, n.Arguments
		}
	}
	return "", nil
}
