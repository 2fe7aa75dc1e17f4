package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"sandboxd"
	"sandboxd/bench/pressure"
)

// attacks measures the cheap calls of the API and commands in a quiet sandbox while
// another sandbox takes of the machine what it can get.
func (b *bench) attacks() (row, error) {
	ctx := context.Background()
	program := filepath.Join(b.dir, pressure.Intruder)
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./test/attack/intruder")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return row{}, fmt.Errorf("%w: %s", err, out)
	}
	quiet, _, err := b.c.Open(ctx, sandboxd.OpenRequest{})
	if err != nil {
		return row{}, err
	}
	defer b.c.Delete(ctx, quiet.ID)
	files, err := b.c.Files(ctx, quiet.ID)
	if err != nil {
		return row{}, err
	}
	calls, err := pressure.NewCalls(ctx, b.addr, b.token, quiet.ID, files)
	if err != nil {
		return row{}, err
	}
	defer calls.Close()
	scene := pressure.Scene{Host: b.c, Calls: calls, Program: program, Round: time.Second}
	if _, err := calls.Round(scene.Round); err != nil { // warm
		return row{}, err
	}
	samples, worst := map[string][]float64{}, 0.0
	var text string
	for _, attack := range pressure.Attacks() {
		if b.attack != "" && !slices.Contains(strings.Split(b.attack, ","), attack.Name) {
			continue
		}
		pairs, err := scene.Run(ctx, attack, b.rounds)
		if err != nil {
			return row{}, err
		}
		api, run := pressure.Of(pairs, pressure.API), pressure.Of(pairs, pressure.Exec)
		for _, p := range pairs {
			samples[attack.Name+", idle"] = append(samples[attack.Name+", idle"], pressure.P99(p.Idle.API), pressure.P99(p.Idle.Exec))
			samples[attack.Name+", beside"] = append(samples[attack.Name+", beside"], pressure.P99(p.Beside.API), pressure.P99(p.Beside.Exec))
		}
		worst = max(worst, api.Ratio, run.Ratio)
		text += fmt.Sprintf("\n\t| %-15s | %5.2f | %5.2f | %5.2fx | %5.2f | %5.2f | %5.2fx |", attack.Name, api.Idle, api.Beside, api.Ratio, run.Idle, run.Beside, run.Ratio)
	}
	return row{Goal: "p99 of others 2x of idle", Result: fmt.Sprintf("worst %.2fx on %d processors; p99 in ms, idle, beside, ratio, of the API and of exec in a neighbour:%s", worst, runtime.NumCPU(), text),
		Met: worst <= 2, Samples: samples}, nil
}

// containerAttacks is attacks on the docker driver.
func (b *bench) containerAttacks() (row, error) {
	e, err := b.containers(0)
	if err != nil {
		return row{}, err
	}
	r, err := e.attacks()
	e.close()
	return r, err
}
