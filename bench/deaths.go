package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
)

var deathsLine = regexp.MustCompile(`deaths: (\d+) of (\d+) right: .*; in ([0-9.]+) s`)

// deaths has the table of the attack tests die and counts how many were told right.
// There the program is built anew from the same sources.
func (b *bench) deaths() (row, error) {
	cmd := exec.Command("go", "test", "-count=1", "-v", "-run", "^TestDeaths$", "./test/attack")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	found := deathsLine.FindStringSubmatch(string(out))
	if found == nil {
		return row{}, errors.Join(fmt.Errorf("the test says nothing of deaths: %s", out), err)
	}
	var n [3]float64
	for i := range n {
		if n[i], err = strconv.ParseFloat(found[i+1], 64); err != nil {
			return row{}, err
		}
	}
	return row{
		Goal: "200 deaths, cause right in all", Result: found[0], Met: n[0] == n[1] && n[1] >= 200,
		Samples: map[string][]float64{"right": {n[0]}, "of": {n[1]}, "seconds": {n[2]}},
	}, nil
}
