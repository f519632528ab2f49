# SPDX-License-Identifier: Apache-2.0
"""Kubelets, nodes, containers and API servers of one test's own."""
