package where

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"reflect"
	"time"

	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/vm/runtime"
)

// uintSuffix ends the names of operators whose result may be beyond an int, up to 2^64-1.
const uintSuffix = " to uint64"

// exactFunctions are what the expression library calls, by their names.
var exactFunctions = func() map[string]*builtin.Function {
	list := map[string]*builtin.Function{}
	add := func(name string, validate func([]reflect.Type) (reflect.Type, error), f func(...any) (any, error)) {
		name = exactPrefix + name
		list[name] = &builtin.Function{Name: name, Func: f, Validate: validate}
	}
	for name, test := range map[string]func(a, b any) bool{
		"==": equal,
		"!=": func(a, b any) bool { return !equal(a, b) },
		"<":  less,
		">":  func(a, b any) bool { return less(b, a) },
		"<=": func(a, b any) bool { return atMost(a, b) },
		">=": func(a, b any) bool { return atMost(b, a) },
		"in": in,
	} {
		add(name, gives(reflect.TypeFor[bool]()), func(args ...any) (any, error) { return test(args[0], args[1]), nil })
	}
	for suffix, most := range map[string]uint64{"": math.MaxInt64, uintSuffix: math.MaxUint64} {
		for _, operator := range []string{"+", "-", "*", "%"} {
			add(operator+suffix, givesNumber, func(args ...any) (any, error) {
				if len(args) == 1 {
					return compute(operator, 0, args[0], most)
				}
				return compute(operator, args[0], args[1], most)
			})
		}
		add("sum"+suffix, givesItem, func(args ...any) (any, error) { return sum(args[0], most) })
		add("abs"+suffix, givesNumber, func(args ...any) (any, error) {
			if n, ok := numberOf(args[0]); ok && !n.isFloat {
				return within(number{size: n.size}, most)
			}
			return builtin.Abs(args[0]), nil
		})
	}
	add("int", gives(reflect.TypeFor[int]()), func(args ...any) (any, error) { return toInt(args[0]) })
	add("valid", givesSame, func(args ...any) (any, error) { return valid(args[0]), nil })
	for name, before := range map[string]func(a, b any) bool{
		"max": less, "min": func(a, b any) bool { return less(b, a) },
	} {
		add(name, builtin.Builtins[builtin.Index[name]].Validate, func(args ...any) (any, error) {
			return extreme(name, before, args)
		})
	}
	return list
}()

// gives says that a function gives values of a type.
func gives(t reflect.Type) func([]reflect.Type) (reflect.Type, error) {
	return func([]reflect.Type) (reflect.Type, error) { return t, nil }
}

func givesSame(args []reflect.Type) (reflect.Type, error) { return args[0], nil }

// givesNumber is the type of what is computed of numbers.
func givesNumber(args []reflect.Type) (reflect.Type, error) {
	for _, t := range args {
		if t.Kind() != reflect.Int && t.Kind() != reflect.Uint64 {
			return reflect.TypeFor[any](), nil
		}
	}
	return reflect.TypeFor[int](), nil
}

func givesItem(args []reflect.Type) (reflect.Type, error) {
	if k := args[0].Kind(); k == reflect.Slice || k == reflect.Array {
		return args[0].Elem(), nil
	}
	return reflect.TypeFor[any](), nil
}

// numbers are two values that are numbers.
func numbers(a, b any) (x, y number, ok bool) {
	if x, ok = numberOf(a); !ok {
		return x, y, false
	}
	y, ok = numberOf(b)
	return x, y, ok
}

func equal(a, b any) bool {
	if x, y, ok := numbers(a, b); ok {
		return !x.isNaN() && !y.isNaN() && x.compare(y) == 0
	}
	return runtime.Equal(a, b)
}

func less(a, b any) bool {
	if x, y, ok := numbers(a, b); ok {
		return !x.isNaN() && !y.isNaN() && x.compare(y) < 0
	}
	return runtime.Less(a, b)
}

func atMost(a, b any) bool {
	if x, y, ok := numbers(a, b); ok {
		return !x.isNaN() && !y.isNaN() && x.compare(y) <= 0
	}
	return runtime.LessOrEqual(a, b)
}

// numberTable is a list of numbers, by their keys.
type numberTable map[any]bool

// key is the same for equal numbers, whatever they are.
func (n number) key() any {
	if n.isFloat {
		if n.float != math.Trunc(n.float) || math.IsInf(n.float, 0) {
			return n.float
		}
		whole, _ := new(big.Float).SetFloat64(n.float).Int(nil)
		n = bigNumber(whole)
	}
	if v := n.value(); v != nil {
		return v
	}
	return n.big().String()
}

func in(a, list any) bool {
	if t, ok := list.(numberTable); ok {
		n, ok := numberOf(a)
		return ok && !n.isNaN() && t[n.key()]
	}
	items, ok := itemsOf(list)
	if !ok {
		return runtime.In(a, list)
	}
	for _, item := range items {
		if equal(a, item) {
			return true
		}
	}
	return false
}

// itemsOf are the items of a list.
func itemsOf(list any) (items []any, ok bool) {
	if items, ok = list.([]any); ok {
		return items, true
	}
	v := reflect.ValueOf(list)
	if k := v.Kind(); k != reflect.Slice && k != reflect.Array {
		return nil, false
	}
	for i := range v.Len() {
		items = append(items, v.Index(i).Interface())
	}
	return items, true
}

// within is an integer as expressions have it, if it is in range.
func within(n number, most uint64) (any, error) {
	v := n.value()
	if v == nil || !n.negative && n.size > most {
		return nil, fmt.Errorf("it comes to %s, which is beyond what an integer holds here, -2^63 to %d", n.big(), most)
	}
	return v, nil
}

// compute is what an operator makes of two values, up to most if they are integers.
func compute(operator string, a, b any, most uint64) (any, error) {
	x, y, ok := numbers(a, b)
	if !ok || x.isFloat || y.isFloat {
		switch operator {
		case "+":
			return runtime.Add(a, b), nil
		case "-":
			return runtime.Subtract(a, b), nil
		case "*":
			return runtime.Multiply(a, b), nil
		}
		return runtime.Modulo(a, b), nil
	}
	if i, ok := a.(int); ok {
		if j, ok := b.(int); ok {
			if v, ok := computeInts(operator, i, j); ok {
				return boxInt(v), nil
			}
		}
	}
	p, q, out := x.big(), y.big(), new(big.Int)
	switch operator {
	case "+":
		out.Add(p, q)
	case "-":
		out.Sub(p, q)
	case "*":
		out.Mul(p, q)
	default:
		if q.Sign() == 0 {
			return nil, errors.New("integer divide by zero")
		}
		out.Rem(p, q) // with the sign of the first, as for ints
	}
	return within(bigNumber(out), most)
}

// computeInts is what an operator makes of two integers, if an int holds it.
func computeInts(operator string, a, b int) (c int, ok bool) {
	switch operator {
	case "+":
		c = a + b
		return c, (c > a) == (b > 0)
	case "-":
		c = a - b
		return c, (c < a) == (b > 0)
	case "*":
		high, low := bits.Mul64(intNumber(int64(a)).size, intNumber(int64(b)).size)
		return a * b, high == 0 && low <= math.MaxInt64
	}
	if b == 0 {
		return 0, false
	}
	return a % b, true
}

// sum adds items up, but those that are null. The sum of integers is exact, and up to most.
func sum(list any, most uint64) (any, error) {
	items, ok := itemsOf(list)
	if !ok {
		return nil, fmt.Errorf("invalid argument for sum (type %T)", list)
	}
	var acc any = 0
	var beyond *big.Int // the sum so far, where acc does not hold it
	for _, item := range items {
		if item == nil {
			continue
		}
		n, isNumber := numberOf(item)
		if !isNumber || n.isFloat || !isInt(acc) {
			if beyond != nil {
				acc, _ = new(big.Float).SetInt(beyond).Float64()
				beyond = nil
			}
			acc = runtime.Add(item, acc)
			continue
		}
		i, fits := item.(int)
		if v, ok := computeInts("+", acc.(int), i); beyond == nil && fits && ok {
			acc = v
			continue
		}
		if beyond == nil {
			beyond = big.NewInt(int64(acc.(int)))
		}
		beyond.Add(beyond, n.big())
	}
	if beyond != nil {
		return within(bigNumber(beyond), most)
	}
	return acc, nil
}

func isInt(v any) bool { _, ok := v.(int); return ok }

// toInt is the function int: what an int does not hold is an error.
func toInt(v any) (any, error) {
	n, ok := numberOf(v)
	if !ok {
		return builtin.Int(v), nil
	}
	if n.isFloat {
		if !(n.float >= -1<<63 && n.float < 1<<63) {
			return nil, fmt.Errorf("int: %v is beyond what an integer holds", n.float)
		}
		return int(n.float), nil
	}
	return within(n, math.MaxInt64)
}

// valid is a list without its nulls, or another value.
func valid(v any) any {
	items, ok := v.([]any)
	if !ok {
		return v
	}
	out := make([]any, 0, len(items))
	for _, item := range items {
		if item != nil {
			out = append(out, item)
		}
	}
	return out
}

// extreme is the value of all that comes last: lists are gone into, and their nulls are left out.
func extreme(name string, before func(a, b any) bool, args []any) (out any, err error) {
	for _, v := range args {
		if items, ok := itemsOf(v); ok {
			if v, err = extreme(name, before, items); err != nil {
				return nil, err
			}
		}
		if v == nil {
			continue
		}
		if _, ok := numberOf(v); !ok {
			if _, ok := v.(time.Duration); !ok {
				return nil, fmt.Errorf("invalid argument for %s (type %T)", name, v)
			}
		}
		if out == nil || before(out, v) {
			out = v
		}
	}
	return out, nil
}
