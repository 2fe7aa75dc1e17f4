// Package meta holds the rules of the whole repository as tests: which way
// imports go, how large things may be, what is written where. It has no code of
// the product, and a rule that a linter has is not repeated here.
package meta
