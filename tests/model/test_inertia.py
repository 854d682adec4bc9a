"""Ten numbers of a body against what they are: sums over its particles."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dyn_service.model.inertia import ZERO_INERTIA, BodyInertia, combine, principal_moments, skew

ROUNDING = 1e-13
"""Of sums of some hundred products of numbers near one."""


def cloud(seed: int, particles: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Masses (n,) kg and places (n, 3) m."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0.1, 1.0, particles), rng.normal(size=(particles, 3))


def of_particles(masses: np.ndarray, places: np.ndarray) -> BodyInertia:
    """By definition: sum of m, of m r, of m (r.r e - r r^T)."""
    moments = sum(m * (r @ r * np.eye(3) - np.outer(r, r)) for m, r in zip(masses, places, strict=True))
    return BodyInertia(float(masses.sum()), masses @ places, np.asarray(moments))


def same(x: BodyInertia, y: BodyInertia) -> None:
    assert x.mass == pytest.approx(y.mass, rel=ROUNDING)
    np.testing.assert_allclose(x.moment, y.moment, rtol=0, atol=ROUNDING * 100)
    np.testing.assert_allclose(x.about_origin, y.about_origin, rtol=0, atol=ROUNDING * 100)


def test_one_particle_by_hand() -> None:
    body = BodyInertia.from_com(2.0, np.array([1.0, 2.0, 3.0]), np.zeros((3, 3)))
    assert (body.mass, body.moment.tolist(), body.com.tolist()) == (2.0, [2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(body.about_origin, [[26, -4, -6], [-4, 20, -12], [-6, -12, 10]])
    np.testing.assert_array_equal(body.about_com, np.zeros((3, 3)))


@pytest.mark.parametrize("seed", range(4))
def test_a_body_seen_from_another_frame(seed: int) -> None:
    masses, places = cloud(seed)
    body = of_particles(masses, places)
    R = Rotation.random(random_state=seed).as_matrix()
    p = np.random.default_rng(seed).normal(size=3)
    same(body.transformed(R, p), of_particles(masses, places @ R.T + p))
    same(body.transformed(R, p).transformed(R.T, -R.T @ p), body)


@pytest.mark.parametrize("seed", range(4))
def test_about_the_centre_of_mass(seed: int) -> None:
    masses, places = cloud(seed)
    body, centre = of_particles(masses, places), masses @ places / masses.sum()
    np.testing.assert_allclose(body.com, centre, rtol=ROUNDING)
    central = of_particles(masses, places - centre).about_origin
    np.testing.assert_allclose(body.about_com, central, rtol=0, atol=ROUNDING * 100)
    same(BodyInertia.from_com(body.mass, centre, central), body)


def test_bodies_add_and_subtract() -> None:
    (masses, places), (other_masses, other_places) = cloud(1), cloud(2)
    x, y = of_particles(masses, places), of_particles(other_masses, other_places)
    whole = of_particles(np.concatenate([masses, other_masses]), np.concatenate([places, other_places]))
    same(x + y, whole)
    same(whole - y, x)
    same(combine([x, y]), whole)
    same(combine(iter([x])), x)


def test_nothing_has_no_mass_and_stands_at_the_origin() -> None:
    same(combine([]), ZERO_INERTIA)
    assert (ZERO_INERTIA.mass, ZERO_INERTIA.com.tolist(), ZERO_INERTIA.moment.tolist()) == (0.0, [0.0] * 3, [0.0] * 3)
    np.testing.assert_array_equal(ZERO_INERTIA.about_com, np.zeros((3, 3)))
    same(ZERO_INERTIA.transformed(np.eye(3), np.ones(3)), ZERO_INERTIA)


def test_skew_is_the_cross_product() -> None:
    a, b = np.array([1.0, 2.0, 3.0]), np.array([-5.0, 7.0, 11.0])
    np.testing.assert_array_equal(skew(a) @ b, np.cross(a, b))
    assert skew(a).shape == (3, 3)


def test_principal_moments_are_ascending_and_blind_to_the_axes() -> None:
    R = Rotation.from_rotvec([0.3, -0.5, 0.7]).as_matrix()
    np.testing.assert_allclose(principal_moments(R @ np.diag([3.0, 1.0, 2.0]) @ R.T), [1.0, 2.0, 3.0], rtol=1e-14)
    # Rounding leaves one triangle off: the symmetric part counts, not one side.
    lopsided = np.array([[2.0, 0.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 5.0]])
    np.testing.assert_allclose(principal_moments(lopsided), [1.0, 3.0, 5.0], rtol=1e-14)
    np.testing.assert_allclose(principal_moments(lopsided.T), [1.0, 3.0, 5.0], rtol=1e-14)


def test_bodies_without_mass_are_one_without_mass() -> None:
    first, second = (BodyInertia.from_com(0.0, np.array(com), np.eye(3)) for com in ([1.0, 0.0, 0.0], [0.0, 2.0, 0.0]))
    sum_of_bodies = first + second
    assert (sum_of_bodies.mass, sum_of_bodies.com.tolist()) == (0.0, [0.0, 0.0, 0.0])
    np.testing.assert_array_equal(sum_of_bodies.about_com, 2.0 * np.eye(3))


def test_the_matrix_gives_the_kinetic_energy_of_the_particles() -> None:
    masses, places = cloud(7)
    V = np.array([0.3, -0.5, 0.7, 1.1, -1.3, 1.7])
    speeds = V[3:] + np.cross(V[:3], places)
    energy = 0.5 * masses @ np.sum(speeds**2, axis=1)
    assert 0.5 * V @ of_particles(masses, places).matrix @ V == pytest.approx(energy, rel=ROUNDING)
