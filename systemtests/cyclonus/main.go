// Cyclonus runs the cases that github.com/mattfenwick/cyclonus generates against a cluster and compares each probe with
// cyclonus' own model of NetworkPolicy. Unlike "cyclonus generate" it asks each pod once a probe for all its attempts, of a
// worker in the pod, instead of a process for each: an hour of two cores instead of a day.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	"github.com/sirupsen/logrus"
	v1 "k8s.io/api/core/v1"
)

var (
	include   = flag.String("include", "", "only cases with one of these tags, separated by commas")
	exclude   = flag.String("exclude", "", "no cases with one of these tags")
	protocols = flag.String("protocols", "TCP,UDP", "what the pods serve, and are asked for")
	mode      = flag.String("mode", string(generator.ProbeModeServiceIP), "what is asked: service-name, service-ip or pod-ip")
	most      = flag.Int("most", 0, "stop after so many cases; 0: all")
	first     = flag.Int("first", 1, "begin with this case")
	loopback  = flag.Bool("loopback", false, "judge pods' connections to themselves too: cyclonus takes them for deniable, Kubernetes does not")
	verbose   = flag.Bool("v", false, "print every probe")
)

func main() {
	flag.Parse()
	logrus.SetLevel(logrus.ErrorLevel)
	failed, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cyclonus:", err)
		os.Exit(2)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// The pods, their ports, and how long cyclonus waits for what it made.
var (
	namespaces = []string{"x", "y", "z"}
	pods       = []string{"a", "b", "c"}
	ports      = []int{80, 81}
)

const podTimeoutSeconds = 120

func run() (failed int, err error) {
	cluster, err := kube.NewKubernetesForContext("")
	if err != nil {
		return 0, err
	}
	var served []v1.Protocol
	for _, p := range list(*protocols) {
		served = append(served, v1.Protocol(p))
	}
	resources, err := probe.NewDefaultResources(cluster, namespaces, pods, ports, served, nil, podTimeoutSeconds, true, "")
	if err != nil {
		return 0, err
	}
	target, err := resources.GetPod("z", "c")
	if err != nil {
		return 0, err
	}
	probed, err := generator.ParseProbeMode(*mode)
	if err != nil {
		return 0, err
	}
	cases := generator.NewTestCaseGenerator(false, target.IP, namespaces, list(*include), list(*exclude)).GenerateTestCases()
	if *most > 0 {
		cases = cases[:min(len(cases), *first-1+*most)]
	}
	interpreter := connectivity.NewInterpreter(cluster, resources, &connectivity.InterpreterConfig{ResetClusterBeforeTestCase: true, KubeProbeRetries: 3,
		PerturbationWaitSeconds: 1, VerifyClusterStateBeforeTestCase: true, BatchJobs: true, IgnoreLoopback: !*loopback, JobTimeoutSeconds: 1})
	printer := &connectivity.Printer{Noisy: *verbose, IgnoreLoopback: !*loopback}
	passed := 0
	for i := *first - 1; i < len(cases); i++ {
		began := time.Now()
		for _, step := range cases[i].Steps {
			step.Probe.Mode = modeFor(cases[i], probed)
		}
		result := interpreter.ExecuteTestCase(cases[i])
		if result.Err != nil {
			return failed, fmt.Errorf("case %d, %s: %w", i+1, cases[i].Description, result.Err)
		}
		word := "passed"
		if result.Passed(!*loopback) {
			passed++
		} else {
			word, failed = "FAILED", failed+1
		}
		if *verbose || word == "FAILED" {
			printer.PrintTestCaseResult(result)
		}
		fmt.Printf("%s %d of %d (%.0f s): %s\n", word, i+1, len(cases), time.Since(began).Seconds(), cases[i].Description)
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	return failed, nil
}

// modeFor asks the pods themselves in cases that make pods or change their labels: cyclonus loses the Services' addresses of these.
func modeFor(c *generator.TestCase, asked generator.ProbeMode) generator.ProbeMode {
	for _, step := range c.Steps {
		if slices.ContainsFunc(step.Actions, func(a *generator.Action) bool { return a.CreatePod != nil || a.SetPodLabels != nil }) {
			return generator.ProbeModePodIP
		}
	}
	return asked
}

func list(text string) []string {
	if text == "" {
		return []string{}
	}
	return strings.Split(text, ",")
}
